"""The first page of a report: the sensitivity of its regime, the effects, and their cost."""

import math
import re
from collections.abc import Sequence

import numpy as np

from ablations.border import is_share
from ablations.compare.contrasts import ADDED, Contrast, Effect
from ablations.compare.effects import counted_values, effects_on_every_metric
from ablations.compare.equal_budget import (
    BUDGETS,
    Needed,
    at_equal_tokens,
    at_marks,
    costs,
    per_step_metric,
    tokens_used,
)
from ablations.compare.sequential import median_interval
from ablations.compare.statistics import Array, per_base, smallest_effect, t_interval
from ablations.designs import arm_in_words
from ablations.figures.difference_figures import differences_figure
from ablations.figures.style import contrast_name, family_name, short
from ablations.read.calibrations import Admitted
from ablations.read.health import learned
from ablations.read.outcomes import amount, bases, in_words, unit, with_interval
from ablations.report.document import Part, Table
from ablations.report.results import Results
from ablations.techniques import REGISTER
from ablations.trainer import remedies

NAMED = 6
"""Comparisons, or those undecided, that the first lines name."""
ROWS = 8
"""Exploratory effects in other metrics that are shown."""
COLUMNS = [
    "comparison", "outcome", "n", "same sign", "median", "difference", "interval", "p", "adjusted p", "tokens",
    "can see", "kind", "verdict",
]  # fmt: skip


def effects_table(results: Results, others: Sequence[Effect]) -> list[Part]:
    """Every registered comparison, the others in the primary metric, the largest effects in any metric.

    others: effects in all metrics, largest first.
    """
    shown = {(effect.contrast.label, effect.outcome) for effect in results.effects}
    rows = [*results.effects, *[e for e in others if (e.contrast.label, e.outcome) not in shown][:ROWS]]
    if not rows:
        return ["There is one arm only, or no two arms that differ in one technique: nothing is compared."]
    return [
        summary(results),
        Table("effects", _caption(results, others), COLUMNS, [_row(results, row) for row in rows]),
    ]


def summary(results: Results) -> str:
    """The verdict on each registered comparison, with its difference and interval."""
    registered = [effect for effect in results.effects if effect.kind == "registered"]
    if not registered:
        return "**Decided:** nothing. No family of comparisons was registered, so every effect is exploratory."
    decided = [effect for effect in registered if effect.decided]
    open_ = [effect for effect in registered if not effect.decided]
    text = f"**Decided:** {len(decided)} of {len(registered)} registered comparisons"
    text += f": {'; '.join(map(_in_a_clause, decided))}." if decided else "."
    return text + (f" **Undecided:** {'; '.join(map(_in_a_clause, open_))}." if 0 < len(open_) <= NAMED else "")


FEW = 8
"""Arms whose outcomes are printed at the end of a study; the report has those of more."""


def closing(results: Results) -> list[Part]:
    """What a study prints at its end: its verdicts, and the outcome of each arm."""
    parts: list[Part] = [*verdicts(results)]
    if len(results.scores) <= FEW:
        key, base_of = results.metric, bases(results.runs)
        final = next((run.config.get("evaluation", {}).get("final_samples") for run in results.runs), None)
        words = re.sub(r" after the last step.*\)", ")", in_words(key, final))
        rows = []
        reference = results.plan.reference if results.plan else None
        for arm in sorted(results.scores, key=lambda arm: arm != reference):
            if seeds := results.scores[arm]:
                mean = t_interval(per_base([*seeds.values()], [base_of[seed] for seed in seeds]))
                ends = "–" if mean.low is None else f"{amount(key, mean.low)} to {amount(key, mean.high)}"
                rows.append([arm_in_words(arm), str(len(seeds)), level(key, mean.mean), ends])
        parts.append(Table("closing", "", [words, "runs", "mean", "95 % interval"], rows))
    return [*parts, _not_exercised(results)]


def verdicts(results: Results) -> list[str]:
    """A sentence for each registered comparison; of many, `summary`."""
    registered = [effect for effect in results.effects if effect.kind == "registered"]
    few = 0 < len(registered) <= NAMED
    return [_sentence(results, effect) for effect in registered] if few else [summary(results)]


def _sentence(results: Results, effect: Effect) -> str:
    """`GRPO 26.5 %, with soft overlong punishment 16.4 %; all 7 pairs down (-10.1 [-19.3, -0.8] points, p = 0.016):
    decided.`"""
    key, estimate, units = effect.outcome, effect.estimate, _units(results, effect)
    name, pair = contrast_name(effect.contrast), effect.contrast.pair
    if not len(units):
        return f"{name}: no base policy has every run that the comparison needs."
    if pair and key == results.metric and results.plan:
        seeds = results.plan.counted(effect.seeds) or effect.seeds
        base_of = [effect.bases[effect.seeds.index(seed)] for seed in seeds]
        after, before = (
            float(per_base([results.scores[arm][seed] for seed in seeds], base_of)[: estimate.n].mean()) for arm in pair
        )
        control = {"naive_grpo": "GRPO", "dapo": "DAPO"}.get(pair[1], short(pair[1]))
        named = effect.contrast.technique or effect.contrast.family == ADDED
        treated = f"with {name.partition(' (')[0]}" if named else short(pair[0])
        text = f"{control} {level(key, before)}, {treated} {level(key, after)}"
    else:
        text = f"{name}: {effect.words}"
    alike, n = int(sum(units * estimate.mean > 0)), len(units)
    of = "base policies" if n < len(effect.seeds) else "pairs"
    sign = "up" if estimate.mean > 0 else "down"
    numbers = f"{with_interval(key, estimate.mean, estimate.low, estimate.high)} {unit(key)}".rstrip()
    p = effect.p if effect.adjusted is None else effect.adjusted
    tested = "" if p is None else f", p = {p:.2g}"
    verdict = "decided" if effect.decided else effect.verdict
    counted = f"{'all' if alike == n else f'{alike} of'} {n} {of} {sign}" if np.any(units) else f"all {n} {of} equal"
    return f"{text}; {counted} ({numbers}{tested}): {verdict}."


def level(key: str, value: float) -> str:
    """`26.5 %`, `41.2 tokens`."""
    return f"{amount(key, value)} {'%' if is_share(key) else unit(key)}".rstrip()


def _in_a_clause(effect: Effect) -> str:
    """`soft overlong punishment (down) -7.5 [-10.9, -4.1] points`."""
    key, estimate = effect.outcome, effect.estimate
    verdict = f" ({effect.verdict})" if effect.decided else ""
    numbers = with_interval(key, estimate.mean, estimate.low, estimate.high)
    return f"{contrast_name(effect.contrast)}{verdict} {numbers} {unit(key)}".rstrip()


def _row(results: Results, effect: Effect) -> list[str]:
    key, estimate = effect.outcome, effect.estimate
    mean, low, high = (amount(key, end, signed=True) for end in (estimate.mean, estimate.low, estimate.high))
    least = smallest_effect(estimate.n)
    numbers = [f"{mean} {unit(key)}".strip(), "–" if estimate.low is None else f"[{low}, {high}]"]
    tests = ["–" if p is None else f"{p:.3g}" for p in (effect.p, effect.adjusted)]
    kind = f"{effect.kind}, {family_name(effect.contrast)}" + (f", alpha {effect.alpha:g}" if effect.alpha else "")
    words = re.sub(r" after the last step.*\)", ")", effect.words)
    seen = amount(key, least * estimate.sd) if least and estimate.sd else "–"
    used = tokens_used(results.runs, effect.contrast)
    units = _units(results, effect)
    tokens = f"{rounded(used[0])} / {rounded(used[1])}" if used else "–"
    return [
        contrast_name(effect.contrast),
        words,
        str(estimate.n),
        f"{int(sum(units * estimate.mean > 0))} of {len(units)}" if len(units) else "–",
        _median(results, effect, units),
        *numbers,
        *tests,
        tokens,
        seen,
        kind,
        effect.verdict,
    ]


def _units(results: Results, effect: Effect) -> Array:
    """The difference of each unit of n; empty where they are not known."""
    if effect.kind == "registered" and results.plan and effect.verdict:
        counted = counted_values(effect, results.plan)
        if len(counted):
            return counted[: effect.estimate.n]
    return per_base(effect.differences, effect.bases)[: effect.estimate.n]


def _median(results: Results, effect: Effect, units: Array) -> str:
    """The median of the units with its interval, of the looks that were made where several are registered."""
    if not len(units):
        return "–"
    looks = results.plan.looks if results.plan and effect.kind == "registered" else ()
    low, high = median_interval(units, looks if len(looks) > 1 else (len(units),)) or (None, None)
    if low is None or high is None or not math.isfinite(high - low):
        low = high = None
    return with_interval(effect.outcome, float(np.median(units)), low, high)


def rounded(number: float) -> str:
    """A count in four significant digits.

    >>> rounded(168_418.4), rounded(512)
    ('168,400', '512')
    """
    return f"{float(f'{number:.4g}'):,.0f}"


def _caption(results: Results, others: Sequence[Effect]) -> str:
    units = "; ".join(sorted({effect.units for effect in results.comparisons}))
    looked = f"{len({effect.outcome for effect in others})} metrics"
    rule = results.plan.rule if results.plan and results.plan.rule else "two-sided sign-flip test, Holm in each family"
    primary = {effect.words for effect in results.effects if effect.outcome == results.metric}
    return (
        f"Primary outcome: {'; '.join(sorted(primary)) or results.metric}. "
        f"Differences with minus without, 95 % t-intervals that decide nothing; n counts {units or 'pairs'}. "
        "Same sign: of the n, those whose own difference has the sign of the mean. Median: of the n, with the 95 % "
        "interval by their signs, which is exact whatever the distribution; no verdict rests on it. "
        f"Registered: {rule}, at the family's share of alpha; a verdict says that most gain (up) or lose (down), "
        "because the test cannot tell a mean of 0 from a few that gain much while most lose a little. "
        "Exploratory rows have no verdict; the p of the last are "
        f"adjusted over all comparisons and {looked} by the maximum statistic. Tokens: generated by a whole run "
        "with / without, means over runs; a run ends with the step that passes its budget. Can see: the effect that n "
        "bases show with a power of 80 % (paired t-test at 5 %). An interaction is half of one "
        "technique's effect with the other on minus off."
    )


COST_COLUMNS = ["comparison", "budget", "used", "needed to its control's level"]


def cost_table(results: Results, found: Sequence[Contrast]) -> list[Part]:
    """Updates, tokens and seconds, used and needed to the control's level; differences along the tokens generated."""
    key = per_step_metric(results.runs, results.metric)
    if key is None:
        return [
            f"**Cost.** Nothing is said at equal budget: neither {in_words(results.metric)} nor the training accuracy "
            f"in its place was measured at every step{remedies().seldom_measured}."
        ]
    rows = []
    for contrast in found:
        for axis, cost in costs(results.runs, contrast, key).items():
            rows.append([contrast_name(contrast), BUDGETS[axis], f"x{cost.used:.2f}", needed_text(cost.needed)])
    caption = (
        "Budget of whole runs, with over without; and how many times its control's budget a run needs to the level "
        f"that its control ends on. Read off {in_words(key)} at every step, on problems not visited before, pair by "
        "pair, in a factorial each arm with the one that differs in the technique only (half of one has none); "
        'geometric means and 95 % t-intervals over base policies. "At least": in some pairs the run never gets '
        "there and counts with its whole budget. Generated tokens include those of discarded groups; seconds are those "
        "of the machine, with whatever else ran on it."
    )
    text = f"**Cost.** Budgets with and without each technique, read off {in_words(key)}:"
    return [text, Table("cost", caption, COST_COLUMNS, rows), *curve_table(results, found, key)] if rows else []


def marks_table(results: Results, found: Sequence[Contrast]) -> list[Part]:
    """Differences in the evaluations that `evaluation.at_tokens` adds."""
    key = results.metric
    marks = sorted(
        {mark for run in results.runs.usable for mark in (run.config.get("evaluation") or {}).get("at_tokens") or ()}
    )
    rows = [
        [contrast_name(contrast), rounded(mark), with_interval(key, at.mean, at.low, at.high)]
        for contrast in found
        for mark, at in at_marks(results.runs, contrast, key, marks)
    ]
    caption = (
        f"Difference in {in_words(key)} ({unit(key) or 'its unit'}) in the evaluations after the steps that passed "
        "these numbers of generated tokens, where all pairs have one; 95 % t-intervals over base policies."
    )
    return [Table("at_tokens", caption, ["comparison", "tokens generated", "difference"], rows)] if rows else []


def curve_table(results: Results, found: Sequence[Contrast], key: str) -> list[Part]:
    """Differences where all runs have generated as many tokens: at the registered budgets, or along the range."""
    registered = results.plan.budgets if results.plan else ()
    rows = [
        [contrast_name(contrast), rounded(tokens), with_interval(key, at.mean, at.low, at.high)]
        for contrast in found
        for tokens, at in at_equal_tokens(results.runs, contrast, key, registered)
    ]
    budgets = (
        "registered budgets" if registered else "quarters of the largest budget that all runs reach, not registered"
    )
    caption = (
        f"Difference in {in_words(key)} ({unit(key) or 'its unit'}) where every run has generated as many tokens: "
        f"{budgets}. A gap at one budget is a point of a curve that may be steep; 95 % t-intervals over base policies."
    )
    return [Table("equal_tokens", caption, ["comparison", "tokens generated", "difference"], rows)] if rows else []


def needed_text(found: Needed | None) -> str:
    """`x0.96 [0.56, 1.64]`; `at least x1.08 [0.75, –] (4 of 12 pairs never)` where some never reach the level; no
    number where most do not, since it would be a ratio of budgets."""
    if found is None:
        return "–"
    if 2 * found.never > found.pairs:
        return f"{found.never} of {found.pairs} pairs never"
    text = f"{'at least ' if found.never else ''}x{found.ratio:.2f}"
    if found.low is not None:
        text += f" [{found.low:.2f}, {'–' if found.high is None else f'{found.high:.2f}'}]"
    notes = [f"{found.never} of {found.pairs} pairs never"] if found.never else []
    notes += [f"{found.left_out} left out: no rise to reach"] if found.left_out else []
    return f"{text} ({'; '.join(notes)})" if notes else text


PANELS = (
    "rollout/accuracy", "rollout/entropy", "rollout/length_mean", "rollout/truncated_frac", "rollout/groups_mixed_frac",
)  # fmt: skip
"""Metrics that the figure shows after the primary one."""


def page_one(results: Results) -> list[Part]:
    """Section 1: sensitivity, the effects, their course in one figure, and their cost."""
    found = [effect.contrast for effect in results.of(results.family)]
    others = effects_on_every_metric(results.runs, found, bases(results.runs))
    parts: list[Part] = ["## 1. Findings", sensitivity(results, found), *effects_table(results, others)]
    # What a study asks by `study.pairs` stands before what its arms would give by themselves.
    asked = asked_by_pairs(results)
    if not (asked or found):
        return parts
    drawing = differences_figure(results.runs, asked or found, list(dict.fromkeys([results.metric, *PANELS])))
    compared = [*asked, *(c for c in found if c.weights not in [one.weights for one in asked])]
    return [*parts, *([drawing] if drawing else []), *cost_table(results, compared), *marks_table(results, compared)]


def asked_by_pairs(results: Results) -> list[Contrast]:
    """The registered comparisons in the primary metric that `study.pairs` names."""
    of_arms = {effect.contrast.family for effect in results.comparisons}
    registered = [e for e in results.effects if e.kind == "registered" and e.outcome == results.metric]
    return [e.contrast for e in registered if e.estimate.n and e.contrast.family not in of_arms]


def sensitivity(results: Results, compared: Sequence[Contrast]) -> str:
    """The regime's calibration for each technique, and the switches that had next to nothing to act on."""
    found = results.calibration
    text = "**Sensitivity.** "
    if found:
        text += _calibrated(found, results, [c.technique for c in compared if c.technique])
    else:
        text += "Not calibrated: without a positive control, what is undecided here may be beyond this regime."
    return f"{text} {_not_exercised(results)}".rstrip()


def _not_exercised(results: Results) -> str:
    """Runs that learned nothing, and switches that had next to nothing to act on; empty for neither."""
    runs, texts = results.runs.usable, []
    if untaught := sum(not learned(run) for run in runs):
        texts.append(f"Nothing was learned in {untaught} of {len(runs)} runs: no update had a gradient.")
    records = results.runs.records
    if idle := [f"{records[switch].label} ({words})" for switch, words in results.idle.items()]:
        texts.append(f"Next to nothing to act on: {'; '.join(idle)}.")
    return " ".join(texts)


def _calibrated(found: Admitted, results: Results, compared: Sequence[str]) -> str:
    names: dict[str, list[str]] = {"yes": [], "no": [], "decided": []}
    decided = {effect.contrast.technique for effect in results.effects if effect.decided}
    claimed = found.on_accuracy if results.metric.startswith("eval/") else {}
    for switch, why in {**found.verdicts, **claimed}.items():
        label = REGISTER[switch].label if switch in REGISTER else switch
        place = "yes" if not why else "decided" if switch in decided else "no"
        if place == "decided":
            arms = " minus ".join(map(short, found.controls.get(switch, ())))
            names[place].append(f"{label} ({arms}: {why})" if arms else f"{label} ({why})")
        else:
            names[place].append(f"{label} ({why})" if why else label)
    text = f"Regime {found.regime}, calibrated with {found.pairs} pairs an arm: "
    text += f"sensitive to {', '.join(names['yes'])}." if names["yes"] else "sensitive to no technique."
    text += f" Not sensitive to {'; '.join(names['no'])}." if names["no"] else ""
    if names["decided"]:
        text += (
            f" Decided here, though not by the calibration: {'; '.join(names['decided'])}. That is another comparison "
            f"({found.pairs} pairs), and one that finds nothing says that effects may be missed, not that this is none."
        )
    others = [REGISTER[t].label for t in dict.fromkeys(compared) if t not in found.verdicts]
    return text + (f" Not calibrated for {', '.join(others)}." if others else "")
