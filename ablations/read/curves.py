"""Metrics of a run as functions of budget: curves to draw, and what was measured of the policy at each step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import optimize, stats

from ablations.read.run import AXES, Run, StudyError

TRAINING_ACCURACY = "rollout/accuracy"
"""Accuracy of all groups that a step generated, before any is filtered: every step measures it."""


def curve(run: Run, key: str, x: str = "step", smooth: int = 1) -> pd.Series:
    """A metric of a run over the axis `x`, ascending; rows without a value are left out."""
    if x not in AXES:
        raise StudyError(f"unknown axis {x!r}; known: {', '.join(AXES)}")
    series = run.series(key)
    if smooth > 1:
        series = series.rolling(smooth, center=True, min_periods=1).mean()
    if x == "step" or series.empty:
        return series
    axis = run.series(x)
    _, at, places_at = np.intersect1d(series.index, axis.index, assume_unique=True, return_indices=True)
    places, values = axis.to_numpy(dtype=float)[places_at], series.to_numpy()[at]
    # Stable: of rows at one place the one of the latest step is the last, and it is kept.
    order = np.argsort(places, kind="stable")
    last = np.diff(places[order], append=np.inf) > 0  # of the rows at one place
    return pd.Series(values[order][last], index=places[order][last])


@dataclass(frozen=True)
class Measured:
    """A metric of the policies of one run, in the order of training; all three are [points]."""

    steps: np.ndarray
    """Rollout steps that the measured policy had been trained for."""
    places: np.ndarray
    """Budget that had been spent on it."""
    values: np.ndarray

    @property
    def at_every_step(self) -> bool:
        return len(self.steps) > 2 and bool(np.all(np.diff(self.steps) == 1))


def measured(run: Run, key: str, axis: str) -> Measured:
    """A metric at the policies that it was measured on.

    The rollouts of step t come from the policy before the updates of step t, so they stand at what had been spent by
    the end of step t - 1. An evaluation in row t comes after the updates. Rollouts on problems that the run has
    visited before are left out: their accuracy is not that of unseen problems.
    """
    steps, values = run.points(key)
    # Arrays instead of `.loc`: a page of a study asks for this thousands of times.
    logged, spent = run.points(axis) if axis != "step" else (run.metrics.index.to_numpy(),) * 2
    after = 0 if key.startswith("eval/") else 1
    of_policy = steps - after
    at = np.searchsorted(logged, of_policy)  # steps ascend
    known = at < len(logged)
    known[known] = logged[at[known]] == of_policy[known]
    kept = known & (steps < (run.first_repeat if after else np.inf))
    return Measured(of_policy[kept], spent[at[kept]].astype(float), values[kept].astype(float))


def rising(curve: Measured) -> Measured:
    """The nondecreasing curve nearest to the moving mean of three points; its last point is the mean of the last three.

    A noisy curve first crosses a level too early, and a single high point at the end sets the level too high. A
    window that shrank at the end would lag by half a step there, so the last point is left out instead.
    """
    smooth = np.convolve(curve.values, np.ones(3) / 3, mode="valid")
    values = optimize.isotonic_regression(np.concatenate([curve.values[:1], smooth])).x
    return Measured(curve.steps[:-1], curve.places[:-1], np.asarray(values))


def value_at(curve: Measured, place: float) -> float | None:
    """The metric at a budget, between two points that are one step apart.

    None where nothing was measured within a step: beyond the ends, and between evaluations that are further apart.
    """
    if not len(curve.places) or not curve.places[0] <= place <= curve.places[-1]:
        return None
    right = int(np.searchsorted(curve.places, place))
    if curve.places[right] != place and curve.steps[right] - curve.steps[right - 1] > 1:
        return None
    return float(np.interp(place, curve.places, curve.values))


def first_reach(curve: Measured, level: float) -> float | None:
    """The budget at which a curve that is measured at every step first reaches a level; None if it never does."""
    above = np.flatnonzero(curve.values >= level)
    if not len(above):
        return None
    i = int(above[0])
    if i == 0:
        return float(curve.places[0])
    share = (level - curve.values[i - 1]) / (curve.values[i] - curve.values[i - 1])
    return float(curve.places[i - 1] + share * (curve.places[i] - curve.places[i - 1]))


def curves_of_bases(seeds: Sequence[pd.Series], bases: Sequence[str]) -> list[pd.Series]:
    """The mean curve over steps of each base policy's seeds; seeds of one base only stay as they are."""
    names = list(dict.fromkeys(bases))
    if len(names) < 2:
        return list(seeds)
    of = [[series for series, base in zip(seeds, bases, strict=True) if base == name] for name in names]
    return [pd.concat(own, axis=1, sort=True).mean(axis=1) if len(own) > 1 else own[0] for own in of]


def band(seeds: Sequence[pd.Series]) -> pd.DataFrame:
    """Mean of several curves with its pointwise 95 % t-interval: columns x, mean, low, high, n.

    Curves over steps are averaged at each step. On another axis the k-th points of all are averaged, their places and
    their values; nothing is interpolated, and curves without a common range have no mean. Where only one curve has a
    value, low and high are NaN: one seed has no interval.
    """
    if all(series.index.equals(seeds[0].index) or pd.api.types.is_integer_dtype(series.index) for series in seeds):
        table = pd.concat(seeds, axis=1, sort=True)
        places, values = table.index.to_numpy(dtype=float), table.to_numpy(dtype=float)
    else:
        common = max(series.index[0] for series in seeds) < min(series.index[-1] for series in seeds)
        points = min(map(len, seeds)) if common else 0
        places = np.mean([series.index[:points] for series in seeds], axis=0)
        values = np.column_stack([series.to_numpy(dtype=float)[:points] for series in seeds])
    counts = np.sum(np.isfinite(values), axis=1)
    mean = np.nanmean(values, axis=1) if len(places) else places
    spread = np.full(len(places), np.nan)
    several = counts > 1
    if several.any():
        spread[several] = np.nanstd(values[several], axis=1, ddof=1) / np.sqrt(counts[several])
    half = spread * stats.t.ppf(0.975, np.maximum(counts - 1, 1))
    return pd.DataFrame({"x": places, "mean": mean, "low": mean - half, "high": mean + half, "n": counts})
