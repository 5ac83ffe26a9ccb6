"""Metrics as functions of one of the five x-axes: a run's curve, and the mean of seeds with its interval."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from dapo_lit.study.read.run import AXES, Run, StudyError


def curve(run: Run, key: str, x: str = "step", smooth: int = 1) -> pd.Series:
    """A metric of a run over the axis `x`, ascending; rows without a value are left out.

    Raises:
        StudyError: the axis is not one of the five.
    """
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
    order = np.argsort(places, kind="stable")
    last = np.diff(places[order], append=np.inf) > 0  # of the rows at one place
    return pd.Series(values[order][last], index=places[order][last])


def value_at(series: pd.Series, place: float) -> float | None:
    """The curve at `place`, linear between its points; None outside them, where it would be extrapolated."""
    if series.empty or not series.index[0] <= place <= series.index[-1]:
        return None
    return float(np.interp(place, series.index.to_numpy(dtype=float), series.to_numpy(dtype=float)))


def band(seeds: Sequence[pd.Series], points: int = 60) -> pd.DataFrame:
    """Mean of several curves with its pointwise 95 % t-interval: columns x, mean, low, high, n.

    Curves with the same x values are averaged there; others are interpolated to a grid over the range that all cover.
    Where only one curve has a value, low and high are NaN: one seed has no interval.
    """
    shared = all(series.index.equals(seeds[0].index) for series in seeds)
    steps_only = all(pd.api.types.is_integer_dtype(series.index) for series in seeds)
    if shared or steps_only:
        table = pd.concat(seeds, axis=1, sort=True)
        places, values = table.index.to_numpy(dtype=float), table.to_numpy(dtype=float)
    else:
        first, last = max(series.index[0] for series in seeds), min(series.index[-1] for series in seeds)
        places = np.linspace(first, last, points) if last > first else np.array([])
        values = np.column_stack([np.interp(places, series.index, series) for series in seeds])
    counts = np.sum(np.isfinite(values), axis=1)
    mean = np.nanmean(values, axis=1) if len(places) else places
    spread = np.full(len(places), np.nan)
    several = counts > 1
    if several.any():
        spread[several] = np.nanstd(values[several], axis=1, ddof=1) / np.sqrt(counts[several])
    half = spread * stats.t.ppf(0.975, np.maximum(counts - 1, 1))
    return pd.DataFrame({"x": places, "mean": mean, "low": mean - half, "high": mean + half, "n": counts})
