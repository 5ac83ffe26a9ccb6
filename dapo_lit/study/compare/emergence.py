"""Whether and when something emerges in a run (a metric passes a threshold), by arm and by pairs with one seed."""

from collections.abc import Mapping
from dataclasses import dataclass

from dapo_lit.study.compare.decision import mcnemar_p
from dapo_lit.study.compare.events import Event, count_pairs, first_passage, restricted_mean_time
from dapo_lit.study.read.registration import Plan
from dapo_lit.study.read.runs import Runs


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
