"""Arms at equal budget, and the budget that each arm needs: curves are interpolated, never extrapolated."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dapo_lit.study.compare.statistics import Estimate, t_interval
from dapo_lit.study.read.curves import AXES, curve, value_at
from dapo_lit.study.read.runs import Runs

BUDGETS = tuple(AXES)


def common_budget(runs: Runs, key: str, axis: str) -> float | None:
    """The largest budget that every usable run reached with the metric logged; None where a run lacks the axis."""
    ends = []
    for run in _averaged(runs, key):
        series = curve(run, key, axis)
        if series.empty:
            return None
        ends.append(float(series.index[-1]))
    return min(ends, default=None)


def at_budget(runs: Runs, key: str, axis: str, budget: float) -> dict[str, Estimate]:
    """Each arm's metric at a budget: mean over seeds with t-interval, curves interpolated. Arms without a run that
    covers the budget are absent."""
    table = {}
    for arm in runs.arms:
        values = [value_at(curve(run, key, axis), budget) for run in _averaged(runs, key).of(arm)]
        reached = [value for value in values if value is not None]
        if reached:
            table[arm] = t_interval(reached)
    return table


def _averaged(runs: Runs, key: str) -> Runs:
    return Runs(tuple(run for run in runs.usable if not run.spoilt(key)))


def first_reach(series: pd.Series, target: float) -> float | None:
    """The budget at which a curve first reaches the target, linear between its points; None if it never does."""
    places, values = series.index.to_numpy(dtype=float), series.to_numpy(dtype=float)
    above = np.flatnonzero(values >= target)
    if len(above) == 0:
        return None
    i = int(above[0])
    if i == 0:
        return float(places[0])
    share = (target - values[i - 1]) / (values[i] - values[i - 1])
    return float(places[i - 1] + share * (places[i] - places[i - 1]))


@dataclass(frozen=True)
class Reach:
    """The budget that an arm needs to reach a target."""

    median: float | None
    """Over seeds, a run that never reaches it counting as infinite; None where that makes the median infinite."""
    reached: int
    runs: int
    by_seed: Mapping[int, float | None]


def budget_to_reach(runs: Runs, key: str, axis: str, target: float) -> dict[str, Reach]:
    """For each arm, the budget at which its runs first reach the target."""
    table = {}
    for arm in runs.arms:
        seeds = {run.seed: curve(run, key, axis) for run in _averaged(runs, key).of(arm)}
        needed = {seed: first_reach(series, target) for seed, series in seeds.items() if len(series)}
        if needed:
            middle = float(np.median([np.inf if budget is None else budget for budget in needed.values()]))
            reached = sum(budget is not None for budget in needed.values())
            table[arm] = Reach(middle if np.isfinite(middle) else None, reached, len(needed), needed)
    return table
