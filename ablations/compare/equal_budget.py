"""The cost of a technique: the multiple of its control's budget that it needs to its level, and what differs at equal
tokens.

Both are read off curves that are measured at every step, run by run. Evaluations every eight steps are no such curve:
the straight line between them once made a difference of 0 points look like 15. Nor is a mean over arms step by step,
budgets and all: arms that spend different numbers of tokens a step are at different budgets in it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ablations.compare.contrasts import Contrast
from ablations.compare.statistics import Estimate, per_base, t_interval
from ablations.designs import Arm, read_arm
from ablations.read.curves import TRAINING_ACCURACY, Measured, first_reach, measured, rising, value_at
from ablations.read.run import AXES
from ablations.read.runs import Run, Runs

BUDGETS = {"gradient_step": "updates", "tokens_generated": AXES["tokens_generated"], "wall_s": "seconds"}


@dataclass(frozen=True)
class Needed:
    """Budget to the level that the control ends on, in multiples of what the control itself needed for it."""

    ratio: float
    """Geometric mean over bases. A lower bound where some pairs never get there: their whole budget is taken."""
    low: float | None
    high: float | None
    """95 % t-interval over bases; no upper end where `ratio` is a bound, none at all for one pair."""
    never: int
    """Pairs whose treated run never reaches the level."""
    pairs: int
    left_out: int
    """Pairs whose level is reached before the first update, as where the control does not improve."""


@dataclass(frozen=True)
class Cost:
    """One comparison on one axis of budget."""

    used: float
    """Budget of the whole run with the technique over that without it, geometric mean over pairs."""
    needed: Needed | None


def per_step_metric(runs: Runs, key: str) -> str | None:
    """The metric that budgets are compared on: `key` if every step measures it, else the training accuracy where
    `key` is an accuracy; None where neither is measured at every step."""
    held_out = key.startswith("eval/") and "@" in key
    for one in (key, TRAINING_ACCURACY) if held_out else (key,):
        if all(measured(run, one, "step").at_every_step for run in runs.usable):
            return one
    return None


def sides(runs: Iterable[Run], contrast: Contrast) -> list[tuple[list[Run], list[Run]]]:
    """(runs of arms with a positive weight, runs of the others) of each seed that has all the arms of a contrast."""
    cells = {(run.arm, run.seed): run for run in runs}
    return [
        (
            [cells[arm, seed] for arm, weight in contrast.weights.items() if weight > 0],
            [cells[arm, seed] for arm, weight in contrast.weights.items() if weight < 0],
        )
        for seed in sorted({run.seed for run in cells.values()})
        if all((arm, seed) in cells for arm in contrast.weights)
    ]


def tokens_used(runs: Runs, contrast: Contrast) -> tuple[float, float] | None:
    """Tokens that a whole run generates on either side of a contrast, means over runs; None without a pair, or where
    the logs count none.

    A budget of tokens ends a run after the step that passes it, so that sides with the same budget still differ.
    """
    pairs = sides(runs.usable, contrast)
    ends = [[_end(run, "tokens_generated") for pair in pairs for run in pair[side]] for side in (0, 1)]
    means = (float(np.mean(ends[0])), float(np.mean(ends[1]))) if all(ends) else (np.nan, np.nan)
    return None if np.isnan(means).any() else means


def _end(run: Run, axis: str) -> float:
    """The largest place of a run on an axis of budget; NaN where it was not logged."""
    _, places = run.points(axis)
    return float(places.max()) if len(places) else np.nan


def costs(runs: Runs, contrast: Contrast, key: str) -> dict[str, Cost]:
    """Updates, tokens and seconds of a comparison with one side that has a technique and one that has not.

    key: a metric that is measured at every step (`per_step_metric`).
    """
    if not contrast.technique and not contrast.pair:
        return {}
    pairs = sides((run for run in runs.usable if not run.has_nonfinite(key)), contrast)
    found = {axis: _on_axis(pairs, twins(contrast), key, axis) for axis in BUDGETS}
    return {axis: cost for axis, cost in found.items() if cost}


def twins(contrast: Contrast) -> list[tuple[str, str]]:
    """(arm with the technique, the arm that differs from it in nothing else); none where some arm has no such twin, as
    in half of a factorial."""
    if contrast.pair:
        return [contrast.pair]
    treated = [read_arm(arm).on for arm, weight in contrast.weights.items() if weight > 0]
    found = [(Arm(on).name, Arm(on - {str(contrast.technique)}).name) for on in treated]
    return found if {arm for pair in found for arm in pair} == {*contrast.weights} else []


def _on_axis(
    both: Sequence[tuple[list[Run], list[Run]]], twins: Sequence[tuple[str, str]], key: str, axis: str
) -> Cost | None:
    used, pairs, bases = [], [], []
    for treated, control in both:
        ends = [np.mean([_end(run, axis) for run in side]) for side in (treated, control)]
        curves = {run.arm: measured(run, key, axis) for run in (*treated, *control)}
        if all(end > 0 for end in ends) and all(curve.at_every_step for curve in curves.values()):
            # Ratios are averaged as logs: twice and half must average to 1.
            used.append(np.log(ends[0] / ends[1]))
            pairs.append([(curves[ours], curves[theirs]) for ours, theirs in twins])
            bases.append(control[0].base)
    return Cost(float(np.exp(np.mean(used))), needed(pairs, bases)) if used else None


QUARTERS = 4
"""Budgets at which a curve is read where none were registered."""


def at_equal_tokens(
    runs: Runs, contrast: Contrast, key: str, budgets: Sequence[float] = ()
) -> list[tuple[float, Estimate]]:
    """(tokens, difference where every arm has generated as many), at every budget that all runs were measured at.

    Each run is read at the budget, and its arm's value enters with its weight. The gap at one budget is a point of a
    curve that may be steep and change its sign, so that none is given alone.

    key: a metric that is measured at every step (`per_step_metric`).
    budgets: the registered ones; none: four equal parts of the largest that every run was measured at, which depends
        on the data.
    """
    found = sides((run for run in runs.usable if not run.has_nonfinite(key)), contrast)
    curves = [[[measured(run, key, "tokens_generated") for run in side] for side in both] for both in found]
    each = [curve for both in curves for side in both for curve in side]
    if not each or not all(curve.at_every_step for curve in each):
        return []
    bases = [control[0].base for _, control in found]
    # No extrapolation: outside these some run was not measured (a fork starts with the tokens of the run that it
    # continues). All runs or none, or the points of one curve would be about different bases and arms.
    start = float(max(curve.places[0] for curve in each))
    end = float(min(curve.places[-1] for curve in each))
    points = []
    for budget in budgets or [end * part / QUARTERS for part in range(1, QUARTERS + 1)]:
        if start <= budget <= end:
            ours, theirs = (
                np.array([np.mean([value_at(curve, budget) for curve in both[side]]) for both in curves])
                for side in (0, 1)
            )
            points.append((float(budget), t_interval(per_base(_size(contrast) * (ours - theirs), bases))))
    return points


def at_marks(runs: Runs, contrast: Contrast, key: str, marks: Sequence[int]) -> list[tuple[int, Estimate]]:
    """(tokens, difference of `key` in the evaluations after the steps that passed them), at every mark that all pairs
    have; a step is finished, so that each side has generated somewhat more than the mark.

    marks: evaluation.at_tokens of the runs.
    """
    found = sides((run for run in runs.usable if not run.has_nonfinite(key)), contrast)
    bases = [control[0].base for _, control in found]
    points = []
    for mark in marks:
        gaps = []
        for both in found:
            ours, theirs = ([value for run in side if (value := _after(run, key, mark)) is not None] for side in both)
            if (len(ours), len(theirs)) == (len(both[0]), len(both[1])):
                gaps.append(_size(contrast) * float(np.mean(ours) - np.mean(theirs)))
        # All pairs or none, or the marks would be about different bases.
        if gaps and len(gaps) == len(found):
            points.append((mark, t_interval(per_base(gaps, bases))))
    return points


def _size(contrast: Contrast) -> float:
    """The contrast over the difference of its sides' means: 2 for a difference of two differences."""
    return sum(weight for weight in contrast.weights.values() if weight > 0)


def _after(run: Run, key: str, mark: int) -> float | None:
    """The metric in the first evaluated step that has passed a number of generated tokens."""
    curve = measured(run, key, "tokens_generated")
    passed = np.flatnonzero(curve.places >= mark)
    return float(curve.values[passed[0]]) if len(passed) else None


def needed(seeds: Sequence[Sequence[tuple[Measured, Measured]]], bases: Sequence[str]) -> Needed | None:
    """The multiple of its control's budget that the treated run needs to the level that its control ends on.

    A pair that never gets there counts with the whole budget of its treated run. That is less than it would need, so
    the mean and the lower end of its interval are lower bounds, and there is no upper end.

    seeds: (treated, control) of each seed: one pair, or in a factorial each arm with its twin.
    """
    found = [[ratio for treated, control in pairs if (ratio := _ratio(treated, control))] for pairs in seeds]
    # The pairs of one seed are no units: they share their base policy and their noise.
    logs = [float(np.mean([np.log(ratio) for ratio, _ in ratios])) for ratios in found if ratios]
    if not logs:
        return None
    over = t_interval(per_base(logs, [base for base, ratios in zip(bases, found, strict=True) if ratios]))
    never = sum(not reached for ratios in found for _, reached in ratios)
    low, high = (None if end is None else float(np.exp(end)) for end in (over.low, over.high))
    pairs = sum(map(len, found))
    left_out = sum(map(len, seeds)) - pairs
    return Needed(float(np.exp(over.mean)), low, None if never else high, never, pairs, left_out)


def _ratio(treated: Measured, control: Measured) -> tuple[float, bool] | None:
    """(budget to the control's last level over that of the control, whether the treated run gets there); None where
    there is no rise to reach."""
    # Nondecreasing fits: a noisy curve first crosses a level too early.
    ours, theirs = rising(treated), rising(control)
    level = float(theirs.values[-1])
    own, spent = first_reach(theirs, level), first_reach(ours, level)
    if not own or spent == 0:
        return None
    return (float(ours.places[-1]) if spent is None else spent) / own, spent is not None
