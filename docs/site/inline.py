"""Numbers within a sentence or a cell of a table: `<!-- n: KEY -->5 %<!-- /n -->`, where KEY says what makes the text.

    json NAME a/b/c FORMAT          a value of benchmarks/results/NAME.json (or benchmarks/NAME.json)
    pooled TASK EFFECT SHOW         an effect around DAPO, the mean over sets of base policies (pooled.py); SHOW may be
                                    `sets`, how many, or `tokens`, with over without
    effect STUDY COMPARISON SHOW    an effect on the held-out accuracy, over base policies; around DAPO on the study's
                                    own page only
    on METRIC STUDY COMPARISON SHOW     the same on another metric; METRIC may end in @FIRST-LAST, of rollout steps
    where TECHNIQUE OTHER on|off|gap SHOW [STUDY]   an effect over the combinations in which another technique is on, or
                                    off, or the difference of the two; of the cube on sums if no study is named
    level METRIC STUDY ARM          the mean over an arm's runs of the number that arms are compared on
    level_of STUDY ARM SEED         the held-out accuracy of one run
    tokens STUDY ARM                what an arm's runs generate, mean, to the hundred
    calibrated REGIME TECHNIQUE SHOW    the effect of the extreme setting, its d, the placebo, or whether it is admitted
    at METRIC STUDY ARM STEP FORMAT     the mean over an arm's runs in one step (-1: the last)
    in_all METRIC STUDY STEP FORMAT     the same over all its arms
    runs METRIC STUDY ARM LEAST     how many of an arm's runs end with at least so much
    pairs STUDY                     runs of the arm that has fewest
    needed TECHNIQUE FORMAT, met TECHNIQUE STUDY ARM FORMAT     what training needs before it acts, and what runs had
    conf FILE a/b/c FORMAT          a value of conf/FILE.yaml
    updates OVERRIDE ...            updates of a rollout step of the run with these overrides
    constant FILE NAME FORMAT [FACTOR]      a literal in the code, times a factor
    marked STUDY COMPARISON TOKENS  the difference in held-out accuracy once each side has generated so many tokens
    cost STUDY COMPARISON SHOW      tokens used, or needed to the level that the control ends on
    is NAME                         what a function of measured.py, stated.py, planned.py or real_model.py gives

FORMAT is a format of Python, `%` for percent (`%0`: whole), `,` for whole numbers, or `s` for text. A path with
blanks is in quotes.
STUDY is a folder below experiments/. COMPARISON is a technique (its main effect in a factorial, else the one view of it
that the study has), two arms, `dapo:dapo-clip_higher`, or two such differences, `"(A - B) - (C - D)"`. SHOW is one of
`SHOWS`. A mark never starts a line: Markdown would end the paragraph there (tests/pages/test_made.py).
"""

import json
import re
import shlex
from collections.abc import Callable
from functools import cache

import measured
import numpy as np
import planned
import pooled
import real_model
import stated
from around import DYNAMIC, SOFT, of_several_sets
from cells import ROOT, cells, ratio
from effects import SUMS, where
from tables import calibrated_effect

from ablations.compare.contrasts import Contrast, Effect, compare_on, contrasts, difference, pair
from ablations.compare.equal_budget import at_marks, costs, per_step_metric
from ablations.read.curves import TRAINING_ACCURACY
from ablations.read.outcomes import amount, outcome, primary_metric, unit

MARK = re.compile(r"<!-- n: ([^>]+?) -->(.*?)<!-- /n -->", re.DOTALL)


def value(name: str, path: str, shown: str) -> str:
    """A value of a benchmark's JSON.

    >>> value("verify", "agreement/sympy/agreement", "%")
    '100.0 %'
    """
    found = measured.results(name)
    for part in path.split("/"):
        found = found[int(part)] if isinstance(found, list) else found[part]
    return found if isinstance(found, str) else formatted(found, shown)


def formatted(number: float, shown: str) -> str:
    """
    >>> formatted(0.0312, "%"), formatted(0.0312, "%0"), formatted(9202.7, ","), formatted(3.14159, ".2f")
    ('3.1 %', '3 %', '9,203', '3.14')
    """
    if shown.startswith("%"):
        return f"{100 * number:.{shown[1:] or 1}f} %"
    return f"{number:,.0f}" if shown == "," else format(number, shown)


@cache
def contrast(study: str, words: str) -> Contrast:
    """A comparison by a technique, by its two arms, or of two differences of arms."""
    arms = cells(study).arms
    if words.startswith("("):
        return pair("", words, arms)
    treated, _, control = words.partition(":")
    if control:
        if missing := {treated, control} - set(arms):
            raise SystemExit(f"experiments/{study} has no arm {', '.join(sorted(missing))}")
        return difference("", words, None, treated, control)
    known = [one for one in contrasts(arms) if words in (one.technique, one.label)]
    found = [one for one in known if one.family == "main effects"] or known
    if len(found) != 1:
        raise SystemExit(f"experiments/{study} has {len(found)} comparisons {words}: name two arms, treated:control")
    return found[0]


@cache
def effect(study: str, words: str, metric: str | None = None) -> Effect:
    """An effect over base policies; on the held-out accuracy if no metric is named."""
    key, _, steps = (metric or primary_metric(cells(study))).partition(
        "@" if metric and "eval/" not in metric else "\0"
    )
    first, _, last = steps.partition("-")
    return compare_on(cells(study), contrast(study, words), key, (int(first), int(last)) if steps else None)


def _mean(found: Effect) -> str:
    return amount(found.outcome, found.estimate.mean, signed=True)


def _size(found: Effect) -> str:
    return amount(found.outcome, abs(found.estimate.mean))


def _ends(found: Effect) -> str:
    return f"[{amount(found.outcome, found.estimate.low)}, {amount(found.outcome, found.estimate.high)}]"


def _p(found: Effect) -> str:
    return f"p = {found.p:.2g}"


def _ends_of_size(found: Effect) -> str:
    """The interval of a decrease, as a size."""
    low, high = found.estimate.low, found.estimate.high
    return f"[{amount(found.outcome, -high)}, {amount(found.outcome, -low)}]" if low is not None and high else ""


def _by_base(found: Effect) -> str:
    """The lowest and the highest base policy."""
    values = sorted(found.by_base.values())
    low, high = (amount(found.outcome, value, signed=True) for value in (values[0], values[-1]))
    return f"{low} to {high}"


SHOWS: dict[str, Callable[[Effect], str]] = {
    "mean": _mean,
    "size": _size,
    "ends": _ends,
    "points": lambda found: f"{_mean(found)} {_ends(found)}",
    "with_unit": lambda found: f"{_mean(found)} {unit(found.outcome)} {_ends(found)}",
    "with_p": lambda found: f"{_mean(found)} {unit(found.outcome)} {_ends(found)}, {_p(found)}",
    "size_with_unit": lambda found: (
        f"{_size(found)} {unit(found.outcome)} " + (_ends(found) if found.estimate.mean > 0 else _ends_of_size(found))
    ),
    "bases": lambda found: str(found.estimate.n),
    "by_base": _by_base,
    "p": _p,
}


def level(metric: str, study: str, arm: str) -> str:
    """Mean over runs of the number that arms are compared on; shares in percent.

    The unit is in the text: a share is no difference.
    """
    found = [one for run in cells(study).of(arm) if (one := outcome(run, metric)) is not None]
    return amount(metric, float(np.mean(found))) + (" %" if unit(metric) == "points" else f" {unit(metric)}".rstrip())


def level_of(study: str, arm: str, seed: str) -> str:
    """The held-out accuracy of one run, in percent."""
    key, [run] = primary_metric(cells(study)), [run for run in cells(study).of(arm) if run.seed == int(seed)]
    return f"{amount(key, outcome(run, key))} %"


def tokens(study: str, arm: str) -> str:
    """Tokens that an arm's runs generate, mean, to the hundred."""
    return f"{round(np.mean([run.series('tokens_generated').max() for run in cells(study).of(arm)]), -2):,.0f}"


def calibrated(regime: str, technique: str, shown: str) -> str:
    """What a regime's calibration found of a technique."""
    found = json.loads((ROOT / "conf" / "regime" / f"{regime}.calibration.json").read_text(encoding="utf-8"))
    row = next(row for row in found["techniques"] if row["technique"] == technique)
    match shown:
        case "extreme":
            return calibrated_effect(row["doses"][-1])
        case "d":
            return f"{row['doses'][-1]['d']:.1f}"
        case "placebo":
            return calibrated_effect(row["placebo"])
        case "admitted":
            return "it is admitted" if row["admitted"] else "it is not admitted"
    raise SystemExit(f"a calibration has extreme, d, placebo and admitted, not {shown}")


@cache
def key_of_costs(study: str) -> str | None:
    """The metric on which budgets of a study are compared; None if no metric is measured at every step."""
    return per_step_metric(cells(study), primary_metric(cells(study)))


def cost(study: str, words: str | Contrast, shown: str) -> str:
    """Tokens of a comparison: `used`, with over without, or `needed` to the level that the control ends on."""
    runs, one = cells(study), contrast(study, words) if isinstance(words, str) else words
    if shown == "used":
        return f"x{ratio(study, one):.2f}"
    key = key_of_costs(study)
    needed = costs(runs, one, key)["tokens_generated"].needed if key else None
    if needed is None or needed.never == needed.pairs:
        return "no pair gets there" if needed else "–"
    if 2 * needed.never > needed.pairs:  # as in reports: it would be a ratio of budgets
        return f"{needed.never} of {needed.pairs} pairs never"
    ends = ["–" if end is None else f"{end:.2f}" for end in (needed.low, needed.high)]
    return f"{'at least ' if needed.never else ''}x{needed.ratio:.2f} [{', '.join(ends)}]"


def marked(study: str, words: str, mark: str) -> str:
    """The difference in the evaluations that `evaluation.at_tokens` names, over base policies that all pass it."""
    runs = cells(study)
    key = primary_metric(runs)
    ((_, found),) = at_marks(runs, contrast(study, words), key, [int(mark)])
    ends = ", ".join(amount(key, end) for end in (found.low, found.high))
    return f"{amount(key, found.mean, signed=True)} [{ends}]"


def _refuse_one_set(kind: str, *rest: str) -> None:
    """Raises SystemExit: the mark states an effect around DAPO, or how soft punishment and dynamic sampling depend on
    each other there, from one set of base policies."""
    if kind in ("effect", "marked") or (kind == "on" and rest[0].startswith((TRAINING_ACCURACY, "eval/"))):
        study, words = rest[kind == "on" :][:2]
        of_several_sets(study, contrast(study, words))
    if kind == "where" and {rest[0], rest[1]} == {SOFT, DYNAMIC} and (*rest[4:], SUMS)[0] == SUMS:
        raise SystemExit(
            f"<!-- n: where {' '.join(rest)} -->: from one set of base policies; take `interaction`, pooled.py"
        )


def text(key: str, own_study: bool = False) -> str:
    """What a mark holds.

    own_study: it is on the page of a study, which says what its own base policies gave.
    """
    kind, *rest = shlex.split(key)
    if not own_study:
        _refuse_one_set(kind, *rest)
    match kind:
        case "json":
            return value(*rest)
        case "pooled":
            of_sets = {"sets": pooled.sets, "tokens": pooled.tokens}.get(rest[2])
            return of_sets(*rest[:2]) if of_sets else SHOWS[rest[2]](pooled.as_effect(*rest[:2]))
        case "effect":
            return SHOWS[rest[2]](effect(rest[0], rest[1]))
        case "on":
            return SHOWS[rest[3]](effect(rest[1], rest[2], rest[0]))
        case "where":
            return SHOWS[rest[3]](where(*rest[:3], *rest[4:]))
        case "level":
            return level(*rest)
        case "level_of":
            return level_of(*rest)
        case "tokens":
            return tokens(*rest)
        case "calibrated":
            return calibrated(*rest)
        case "cost":
            return cost(*rest)
        case "marked":
            return marked(*rest)
        case "at":
            return formatted(stated.at(*rest[:4]), rest[4])
        case "in_all":
            return formatted(stated.in_all(*rest[:3]), rest[3])
        case "runs":
            return stated.runs_with(*rest)
        case "pairs":
            return stated.pairs(*rest)
        case "needed":
            return formatted(stated.needed(rest[0]), rest[1])
        case "met":
            return formatted(stated.met(*rest[:3]), rest[3])
        case "conf":
            return formatted(stated.configured(*rest[:2]), rest[2])
        case "updates":
            return stated.updates(*rest)
        case "constant":
            factor = float(rest[3]) if len(rest) > 3 else 1
            return formatted(stated.constant(*rest[:2]) * factor, rest[2])
        case "is":
            return (measured.NAMED | stated.NAMED | planned.NAMED | real_model.NAMED)[rest[0]]()
    raise SystemExit(f"<!-- n: {key} -->: not one of the kinds that inline.py lists")


def without_marks(page: str) -> str:
    """A page as readers of its raw text see it.

    >>> without_marks("It costs <!-- n: json a b .1f -->2.8<!-- /n --> points.")
    'It costs 2.8 points.'
    """
    return MARK.sub(r"\2", page)


def filled(page: str, own_study: bool = False) -> str:
    """The text of a page with every mark filled."""
    return MARK.sub(lambda mark: f"<!-- n: {mark[1]} -->{text(mark[1], own_study)}<!-- /n -->", page)
