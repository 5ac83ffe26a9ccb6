"""Whether and when something emerges in a run (a metric passes a threshold), by arm and by pairs with one seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dapo_lit.study.compare.decision import mcnemar_p
from dapo_lit.study.read.registration import Plan
from dapo_lit.study.read.runs import Runs


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


@dataclass(frozen=True)
class Emergence:
    """Times to an event in all usable runs that logged its metric; runs without the event are censored."""

    key: str
    threshold: float
    horizon: int
    """In steps; a later event does not count."""
    times: Mapping[str, Mapping[int, Event]]
    """Arm -> seed -> event."""

    def reached(self, arm: str) -> dict[int, bool]:
        """Seed -> whether the event happened within the horizon."""
        return {seed: e.reached and e.step <= self.horizon for seed, e in self.times.get(arm, {}).items()}

    def share(self, arm: str) -> str:
        """`10 of 20`."""
        reached = self.reached(arm)
        return f"{sum(reached.values())} of {len(reached)}"

    def mean_time(self, arm: str) -> str:
        """`17.4 (standard error 1.6)`: the restricted mean in steps, or why there is none."""
        try:
            mean, error = restricted_mean_time(list(self.times.get(arm, {}).values()), self.horizon)
        except ValueError as reason:
            return f"not given: {reason}"
        return f"{mean:.1f} (standard error {error:.1f})"

    def pairs(self, treated: str, control: str) -> tuple[int, int, int, int]:
        """Number of seeds with the event in both arms, only in the treated, only in the control, in neither."""
        first, second = self.reached(treated), self.reached(control)
        seeds = sorted(first.keys() & second.keys())
        return count_pairs([first[s] for s in seeds], [second[s] for s in seeds])


def emergence(runs: Runs, plan: Plan | None) -> Emergence | None:
    """The event that the plan registered; without one, written steps in more than half of the responses.

    None where no run logged the metric, or where nothing was registered and every run has the event from the start.
    """
    event = plan.event if plan and plan.event else {}
    key, threshold = str(event.get("key", "task/steps_frac")), float(event.get("threshold", 0.5))
    times = {
        arm: {
            run.seed: first_passage(run.series(key), threshold) for run in runs.usable.of(arm) if len(run.series(key))
        }
        for arm in runs.usable.arms
    }
    everyone = [e for seeds in times.values() for e in seeds.values()]
    if not everyone or (not event and all(e.reached and e.step <= 1 for e in everyone)):
        return None
    return Emergence(key, threshold, int(event.get("horizon") or max(e.step for e in everyone)), times)


def registered_sentence(found: Emergence, plan: Plan) -> str:
    """The registered contrast in words: counts, pairs and the exact test, and what it decides."""
    event = plan.event or {}
    treated, control = str(event["treated"]), str(event["control"])
    both, only_treated, only_control, neither = found.pairs(treated, control)
    p = mcnemar_p(only_treated, only_control)
    decided = p <= plan.alpha
    words = "the registered test decides nothing"
    if decided:
        words = f"**{treated}** gets there {'more' if only_treated > only_control else 'less'} often"
    return (
        f"**{treated} - {control}** (registered contrast, the primary outcome): {found.key} passes {found.threshold:g} "
        f"within {found.horizon} steps in {found.share(treated)} runs of {treated} and {found.share(control)} of "
        f"{control}; of the pairs {both} in both, {only_treated} only in the first, {only_control} only in the second, "
        f"{neither} in neither, exact McNemar p {p:.3g}: {words}. Restricted mean steps: {found.mean_time(treated)} "
        f"and {found.mean_time(control)}."
    )
