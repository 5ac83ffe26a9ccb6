"""How a claim is judged: one number a seed that is positive where the claim is true, and a rule for its verdict.

A claim holds if the numbers' 95 % t-interval lies above 0, fails if it lies below, and is undecided otherwise, with
fewer than three seeds, or where the numbers fall into two clusters and the exact test does not reject.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

from dapo_lit.study.budget import first_reach
from dapo_lit.study.contrasts import Contrast, contrasts
from dapo_lit.study.curves import curve
from dapo_lit.study.health import ends
from dapo_lit.study.outcomes import amount, outcome, scores, unit
from dapo_lit.study.runs import Run, Runs
from dapo_lit.study.statistics import sign_flip_p, t_interval, two_clusters

Verdict = Literal["holds", "fails", "undecided", "not run"]


@dataclass(frozen=True)
class Claim:
    """A claim and what these runs say of it."""

    number: str
    text: str
    metric: str
    arms: str
    verdict: Verdict
    evidence: str


def judge(values: Sequence[float]) -> Verdict:
    """The verdict on numbers that are positive where a claim is true, one a seed."""
    if not values:
        return "not run"
    if len(values) < 3:
        return "undecided"
    estimate, p = t_interval(values), sign_flip_p(values)
    if two_clusters(values) is not None and p > 0.05:
        return "undecided"
    if estimate.low is not None and estimate.low > 0:
        return "holds"
    return "fails" if estimate.high is not None and estimate.high < 0 else "undecided"


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """A claim of several parts: it holds if all do, fails if one does."""
    for verdict in ("not run", "fails", "undecided"):
        if verdict in verdicts:
            return verdict
    return "holds" if verdicts else "not run"


def say(label: str, values: Sequence[float], key: str) -> str:
    """Mean, interval, n and exact p of a claim's numbers."""
    if not values:
        return f"{label}: no runs"
    estimate = t_interval(values)
    text = f"{label}: {amount(key, estimate.mean, signed=True)}"
    if estimate.low is not None:
        text += f" [{amount(key, estimate.low, signed=True)}, {amount(key, estimate.high, signed=True)}]"
        text = f"{text} {unit(key)}".rstrip() + f", exact p {sign_flip_p(values):.3g}"
    return f"{text}, n = {len(values)}"


@dataclass(frozen=True)
class Part:
    """One number a seed, with what it is."""

    label: str
    values: Sequence[float]
    key: str


def conclude(number: str, text: str, metric: str, arms: str, *parts: Part) -> Claim:
    """A claim from its parts; parts without runs make it `not run`."""
    verdict = all_of([judge(part.values) for part in parts])
    return Claim(number, text, metric, arms, verdict, "; ".join(say(p.label, p.values, p.key) for p in parts))


def contrast_for(technique: str, runs: Runs) -> Contrast | None:
    """The comparison that speaks for a technique: left out of DAPO, else its main effect, its rung, alone on GRPO."""
    found = [c for c in contrasts(runs.arms) if c.technique == technique and "Shapley" not in c.family]
    order = ("left out of DAPO", "main effects", "ladder", "alone on GRPO")
    return min(found, key=lambda c: order.index(c.family) if c.family in order else 9, default=None)


def effect(technique: str, runs: Runs, key: str, sign: float = 1.0) -> Part:
    """A technique's effect on a metric, a number a seed, times `sign`."""
    contrast = contrast_for(technique, runs)
    if contrast is None:
        return Part(f"{key} with and without {technique}", (), key)
    return Part(f"{key}, {contrast.family}", [sign * d for d in by_seed(contrast, scores(runs, key)).values()], key)


def by_seed(contrast: Contrast, table: Mapping[str, Mapping[int, float]]) -> dict[int, float]:
    """A contrast's value at each seed that all its arms have."""
    shared = set.intersection(*(set(table.get(arm, {})) for arm in contrast.weights))
    return {s: sum(w * table[arm][s] for arm, w in contrast.weights.items()) for s in sorted(shared)}


def change(runs: Sequence[Run], key: str, sign: float = 1.0, start_share: float = 1.0) -> list[float]:
    """Last tenth minus `start_share` of the first tenth of a metric, a number a run, times `sign`."""
    return [sign * (pair[1] - start_share * pair[0]) for run in runs if (pair := ends(run, key)) is not None]


def seed_means(runs: Sequence[Run], values: Mapping[str, float]) -> list[float]:
    """Numbers by run name averaged over the arms of a seed, so that a seed counts once."""
    seeds = sorted({run.seed for run in runs if run.name in values})
    rows = [[values[run.name] for run in runs if run.seed == seed and run.name in values] for seed in seeds]
    return [sum(row) / len(row) for row in rows]


def difference_of(runs: Runs, treated: str, control: str, key: str) -> list[float]:
    contrast = Contrast("", "", None, {treated: 1.0, control: -1.0})
    return list(by_seed(contrast, scores(runs, key)).values())


def share_of_budget(runs: Runs, contrast: Contrast | None, key: str, axis: str) -> list[float]:
    """For each seed, the budget that the treated run needs to reach the control's outcome, over the control's own.

    A run that does not get there counts with its whole budget: it needs at least that much.
    """
    if contrast is None or contrast.pair is None:
        return []
    cells = {(run.arm, run.seed): run for run in runs}
    treated, control = contrast.pair
    ratios = []
    for seed in runs.seeds:
        a, b = cells.get((treated, seed)), cells.get((control, seed))
        reduced = outcome(b, key) if b else None
        if a is None or b is None or reduced is None:
            continue
        ours, theirs = curve(a, key, axis), curve(b, key, axis)
        own, needed = first_reach(theirs, reduced.last), first_reach(ours, reduced.last)
        if own and len(ours):
            ratios.append((float(ours.index[-1]) if needed is None else needed) / own)
    return ratios


def rank_correlation(run: Run, first: str, second: str) -> float | None:
    """Spearman correlation of two metrics over the steps that have both; None below three or without variation."""
    a, b = run.series(first).align(run.series(second), join="inner")
    if len(a) < 3 or a.nunique() < 2 or b.nunique() < 2:
        return None
    return float(stats.spearmanr(a, b).statistic)
