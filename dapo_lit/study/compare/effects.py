"""Effects in one table: what a study registered, with its verdict, and everything else, which is exploratory.

A registered comparison is decided by the test of its family at the looks that were registered; nothing else has a
verdict. Exploratory rows are the other comparisons in the primary metric, and the largest effects in any metric.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dapo_lit.study.compare.contrasts import (
    Comparison,
    Contrast,
    by_seed,
    compare,
    compare_on,
    contrasts,
    primary_family,
)
from dapo_lit.study.compare.sequential import decisions, interval
from dapo_lit.study.compare.statistics import (
    Array,
    Estimate,
    holm,
    max_t_p,
    per_base,
    sign_flip_p,
    standardised,
    t_interval,
)
from dapo_lit.study.read.outcomes import bases, in_words, is_outcome, scores
from dapo_lit.study.read.registration import Family, Plan, Registered
from dapo_lit.study.read.runs import Runs


@dataclass(frozen=True)
class Effect:
    """One row of the table."""

    contrast: Contrast
    outcome: str
    """The key of the metric."""
    words: str
    estimate: Estimate
    """Over base policies; of a study with several looks the interval is valid whenever it stops."""
    p: float | None
    adjusted: float | None
    """Within the registered family, or over all metrics of the exploratory ones; None where several looks decide."""
    kind: str
    """registered or exploratory."""
    verdict: str
    """`up`, `down`, `within the margin`, `undecided` or `at 8 of 12`; empty for exploratory rows."""
    alpha: float | None = None
    """That of its family."""

    @property
    def decided(self) -> bool:
        return self.verdict.split(" ")[0] in ("up", "down")


def registered_effects(runs: Runs, plan: Plan | None, reference: str | None, metric: str) -> list[Effect]:
    """The effects of every registered family, with their verdicts."""
    found = [_event(runs, plan.event, plan.alpha)] if plan and plan.event else []
    for family in families_of(runs, plan, reference, metric):
        every = [(Contrast(family.name, one.label, one.technique, one.weights), one) for one in family.contrasts]
        seen = [(one, compare_on(runs, contrast, one.outcome, one.steps)) for contrast, one in every]
        compared = [(one, comparison) for one, comparison in seen if comparison.seeds]
        units = [per_base(comparison.differences, comparison.bases) for _, comparison in compared]
        found += _judged(family, compared, units, plan.stopping if plan else None)
    return found


def families_of(runs: Runs, plan: Plan | None, reference: str | None, metric: str) -> tuple[Family, ...]:
    """The registered families; of a plan that named no contrasts, the family that it named, in its primary metric."""
    if plan is None or plan.event or plan.families:
        return plan.families if plan else ()
    known = contrasts(runs.usable.arms, reference)
    name = plan.family or primary_family(known)
    final = next((run.config.get("evaluation", {}).get("final_samples") for run in runs), None)
    words = in_words(metric, final)
    members = tuple(
        Registered(c.label, c.technique, c.weights, metric, words) for c in known if name and c.family == name
    )
    return (Family(str(name), plan.alpha, members),) if members else ()


def _event(runs: Runs, event: Mapping[str, Any], alpha: float) -> Effect:
    """The share of runs in which a metric passes a threshold within a horizon; on these 0s and 1s the sign-flip test is
    McNemar's."""
    key, threshold, horizon = str(event["key"]), float(event["threshold"]), event.get("horizon")
    treated, control = str(event["treated"]), str(event["control"])
    table = {
        arm: {
            run.seed: float((run.series(key).loc[:horizon] > threshold).any())
            for run in runs.usable.of(arm)
            if len(run.series(key))
        }
        for arm in (treated, control)
    }
    contrast = Contrast("event", f"{treated} against {control}", None, {treated: 1.0, control: -1.0})
    found = compare(contrast, table, bases(runs))
    estimate = found.estimate or Estimate(float("nan"), None, None, 0, None)
    verdict = "undecided" if found.p is None or found.p > alpha else "up" if estimate.mean > 0 else "down"
    counts = " and ".join(f"{sum(had.values()):.0f} of {len(had)}" for had in table.values())
    words = f"runs in which {in_words(key)} pass {threshold:g}" + (f" by step {horizon}" if horizon else "")
    return Effect(contrast, key, f"{words}: {counts}", estimate, found.p, found.p, "registered", verdict, alpha)


def _judged(
    family: Family,
    compared: Sequence[tuple[Registered, Comparison]],
    units: Sequence[Array],
    stopping: Mapping[str, Any] | None,
) -> list[Effect]:
    """One look: Holm over exact p-values of the registered number of bases. Several: alpha is spent over them."""
    rule = stopping or {}
    looks = [int(n) for n in rule.get("looks") or [rule.get("pairs") or max(map(len, units), default=0)]]
    first, several = looks[0], len(looks) > 1
    exact = [_units(values[:first])[1] if len(values) >= first else None for values in units]
    adjusted = holm([1.0 if p is None else p for p in exact])
    at = decisions(units, looks, family.alpha) if several else [first if p <= family.alpha else None for p in adjusted]
    rows = []
    for (one, comparison), values, look, p_holm in zip(compared, units, at, adjusted, strict=True):
        reached = max((n for n in looks if n <= len(values)), default=len(values))
        estimate, p = _units(values[:reached])
        if several and (ends := interval(values, looks)):
            estimate = replace(estimate, low=ends[0], high=ends[1])
        verdict = "undecided"
        if len(values) < first:
            verdict = f"at {len(values)} of {first}"
        elif look:
            verdict = ("up" if estimate.mean > 0 else "down") + (f" at {look} of {looks[-1]}" if several else "")
        elif not several and family.margin and _within(values[:reached], family):
            verdict = "within the margin"
        words = one.words + (f", steps {one.steps[0]} to {one.steps[1]}" if one.steps else "")
        shown = None if several or len(values) < first else p_holm
        effect = Effect(comparison.contrast, one.outcome, words, estimate, p, shown, "registered", verdict)
        rows.append(replace(effect, alpha=family.alpha))
    return rows


def _units(values: Array) -> tuple[Estimate, float | None]:
    """Interval and sign-flip p of one value a base policy."""
    return t_interval(values), sign_flip_p(values) if 1 < len(values) <= 44 else None


def _within(values: Array, family: Family) -> bool:
    """True if the whole interval lies within the margin, at the family's alpha shared among its comparisons."""
    wide = t_interval(values, 1 - 2 * family.alpha / len(family.contrasts))
    assert family.margin is not None
    return wide.low is not None and wide.high is not None and max(-wide.low, wide.high) <= family.margin


def exploratory_effects(
    comparisons: Sequence[Comparison], registered: Sequence[Effect], metric: str, words: str
) -> list[Effect]:
    """The other comparisons in the primary metric, without a verdict."""
    known = {(effect.contrast.label, effect.contrast.family) for effect in registered if effect.outcome == metric}
    return [
        Effect(one.contrast, metric, words, one.estimate, one.p, None, "exploratory", "")
        for one in comparisons
        if one.estimate and (one.contrast.label, one.contrast.family) not in known
    ]


def effects_on_every_metric(
    runs: Runs, found: Sequence[Contrast], base_of: Mapping[int, str] | None = None
) -> list[Effect]:
    """Effects on all metrics that describe the policy or its training, adjusted together, largest first.

    Effects are ordered by their mean over the standard deviation of the bases. Only seeds that all comparisons have
    count, so that one flip of signs means the same for all. A metric that some run lacks, or whose pairs all differ by
    the same amount, is left out.
    """
    effects: list[tuple[Contrast, str, dict[int, float]]] = []
    for key in filter(is_outcome, runs.usable.keys()):
        table = scores(runs, key)
        effects += [(contrast, key, by_seed(contrast, table)) for contrast in found]
    seeds = sorted(set.union(*(set(pairs) for _, _, pairs in effects))) if effects else []
    effects = [entry for entry in effects if len(entry[2]) == len(seeds) and _spread(entry[2])]
    if len(seeds) < 2 or not effects:
        return []
    pairs_of = np.array([[pairs[seed] for _, _, pairs in effects] for seed in seeds])
    values = per_base(pairs_of, [(base_of or {}).get(seed, str(seed)) for seed in seeds])
    adjusted = max_t_p(values)
    return [
        Effect(
            effects[i][0],
            effects[i][1],
            in_words(effects[i][1]),
            t_interval(values[:, i]),
            None,
            float(adjusted[i]),
            "exploratory",
            "",
        )
        for i in np.argsort(-np.abs(standardised(values)), kind="stable")
    ]


def _spread(pairs: Mapping[int, float]) -> bool:
    x = np.array(list(pairs.values()))
    return len(x) > 1 and float(np.std(x)) > 1e-9 * float(np.max(np.abs(x)) or 1)
