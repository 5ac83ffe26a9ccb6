"""The analysis behind a report, computed once: outcomes, comparisons, and reasons not to compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablations.compare.contrasts import Effect, compare, contrasts, primary_family
from ablations.compare.effects import registered_effects
from ablations.read.calibrations import Admitted
from ablations.read.guard import refusals
from ablations.read.health import exercised
from ablations.read.outcomes import bases, in_words, primary_metric, scores
from ablations.read.registration import Plan
from ablations.read.runs import Runs, StudyError


@dataclass(frozen=True)
class Results:
    runs: Runs
    plan: Plan | None
    edits: tuple[str, ...]
    metric: str
    scores: Mapping[str, Mapping[int, float]]
    comparisons: tuple[Effect, ...]
    """Every contrast that has a pair, in the primary metric, whether it was registered or not."""
    family: str | None
    """The family of comparisons that the findings describe."""
    act: Mapping[str, tuple[bool | None, str]]
    """For each technique, whether the regime exercises it."""
    missing: Mapping[tuple[str, int], str]
    effects: tuple[Effect, ...] = ()
    """Registered, with verdicts, and the other comparisons."""
    calibration: Admitted | None = None
    """The calibration of the study's regime; None without one."""

    @property
    def idle(self) -> dict[str, str]:
        """Technique -> measurement, of those with next to nothing to act on and not admitted by a calibration."""
        admitted = {t for t, why in self.calibration.verdicts.items() if not why} if self.calibration else set()
        return {t: words for t, (state, words) in self.act.items() if state is False and t not in admitted}

    def of(self, family: str | None) -> tuple[Effect, ...]:
        return tuple(result for result in self.comparisons if result.contrast.family == family)


def analyse(
    runs: Runs,
    plan: Plan | None = None,
    edits: tuple[str, ...] = (),
    metric: str | None = None,
    seeds: Sequence[int] = (),
) -> Results:
    """Analyses the runs of one study.

    plan: as it was first registered, which decides. seeds: all that were registered, those added later as well.

    Raises StudyError: no run has finished, or the runs may not be compared.
    """
    if len(runs.studies) > 1:
        raise StudyError(f"these runs are of {len(runs.studies)} studies ({', '.join(runs.studies)}); name one folder")
    if not len(runs.usable):
        missing = "; ".join(f"{arm}/seed_{seed}: {reason}" for (arm, seed), reason in runs.missing().items())
        raise StudyError(f"no run has finished, there is nothing to report ({missing})")
    if reasons := refusals(runs.usable, plan.declared if plan else ()):
        raise StudyError("; ".join(reasons))
    metric = primary_metric(runs, plan.metric if plan else metric)
    table = scores(runs, metric)
    wanted = plan.arms if plan else ()
    reference = (plan.reference if plan else None) or (runs.arms[0] if len(runs.arms) > 1 else None)
    final = next((run.config.get("evaluation", {}).get("final_samples") for run in runs), None)
    found, base_of, words = contrasts(runs.usable.arms, reference), bases(runs), in_words(metric, final)
    comparisons = [one for c in found if (one := compare(c, table, base_of, metric, words)).seeds]
    registered = registered_effects(runs, plan, reference, metric)
    families = {contrast.family for contrast in found}
    named = [effect.contrast.family for effect in registered if effect.contrast.family in families]
    known = {(e.contrast.label, e.contrast.family) for e in registered if e.outcome == metric}
    others = [one for one in comparisons if (one.contrast.label, one.contrast.family) not in known]
    return Results(
        runs=runs,
        plan=plan,
        edits=edits,
        metric=metric,
        scores=table,
        comparisons=tuple(comparisons),
        family=next(iter(named), (plan.family if plan else None) or primary_family(found)),
        act=exercised(runs),
        missing=runs.missing(wanted, _awaited(runs, plan, registered, seeds)),
        effects=(*registered, *others),
    )


def _awaited(runs: Runs, plan: Plan | None, registered: Sequence[Effect], seeds: Sequence[int]) -> tuple[int, ...]:
    """The registered seeds; of a study that stopped because all is decided, those that it ran."""
    stopped = plan and "until" in (plan.stopping or {}) and all(effect.decided for effect in registered)
    wanted = sorted({*plan.seeds, *seeds}) if plan else ()
    return tuple(s for s in wanted if not stopped or s <= max(runs.seeds))
