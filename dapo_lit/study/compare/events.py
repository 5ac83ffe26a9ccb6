"""Time to an event (such as the first step at which reasoning has emerged), with runs that never have it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Event:
    """When a run reached the event, or how long it was watched without it."""

    step: int
    reached: bool
    """False: censored at `step`, the last one observed."""


def first_passage(series: pd.Series, threshold: float = 0.5) -> Event:
    """First step at which a metric exceeds the threshold; censored at the last logged step if it never does.

    Raises:
        ValueError: an empty series, which was never observed.
    """
    if series.empty:
        raise ValueError("a run without a single observation has no time to an event")
    above = series.index[series > threshold]
    return Event(int(above[0]), True) if len(above) else Event(int(series.index[-1]), False)


def restricted_mean_time(events: Sequence[Event], horizon: int) -> tuple[float, float]:
    """Mean time to the event, time beyond the horizon not counted: the area under the Kaplan-Meier curve up to it.

    A run without the event adds the whole horizon to the mean; one that ended early leaves the risk set where it ended.

    Returns:
        The restricted mean and its standard error (Greenwood), both in steps.

    Raises:
        ValueError: no runs, or some lack the event and none of these was observed as far as the horizon.
    """
    if not events:
        raise ValueError("no runs")
    times = np.array([min(event.step, horizon) for event in events])
    reached = np.array([event.reached and event.step <= horizon for event in events])
    survival, area, last = 1.0, 0.0, 0
    falls: list[tuple[float, int, int]] = []
    for time in np.unique(times[reached]):
        area += survival * (time - last)
        at_risk, deaths = int(np.sum(times >= time)), int(np.sum(reached & (times == time)))
        falls.append((area, at_risk, deaths))
        survival *= 1 - deaths / at_risk
        last = int(time)
    if survival > 0 and times.max() < horizon:
        raise ValueError(f"no run is observed as far as the horizon ({horizon}); the longest ended at {times.max()}")
    area += survival * (horizon - last)
    variance = sum((area - to) ** 2 * d / (r * (r - d)) for to, r, d in falls if r > d)
    return float(area), float(variance**0.5)


def count_pairs(first: Sequence[bool], second: Sequence[bool]) -> tuple[int, int, int, int]:
    """Paired yes/no outcomes: both, only the first, only the second, neither."""
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    return int(np.sum(a & b)), int(np.sum(a & ~b)), int(np.sum(~a & b)), int(np.sum(~a & ~b))
