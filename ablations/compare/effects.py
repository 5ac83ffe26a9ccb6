"""Effects in one table: what a study registered, with its verdict, and everything else, which is exploratory.

A registered comparison is decided by the test of its family at the looks that were registered; nothing else has a
verdict. Exploratory rows are the other comparisons in the primary metric, and the largest effects in any metric.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ablations.compare.contrasts import Contrast, Effect, by_seed, compare_on, contrasts, primary_family
from ablations.compare.sequential import decisions, interval
from ablations.compare.statistics import Array, holm, max_t_p, per_base, standardised, t_interval, tested
from ablations.read.outcomes import in_words, is_outcome, scores
from ablations.read.registration import Family, Plan, Registered
from ablations.read.runs import Runs


def registered_effects(runs: Runs, plan: Plan | None, reference: str | None, metric: str) -> list[Effect]:
    """The effects of every registered family, with their verdicts."""
    found: list[Effect] = []
    for family in families_of(runs, plan, reference, metric):
        compared = []
        for one in family.contrasts:
            effect = compare_on(
                runs, Contrast(family.name, one.label, one.technique, one.weights), one.outcome, one.steps
            )
            words = one.words + (f", steps {one.steps[0]} to {one.steps[1]}" if one.steps else "")
            # Also without a pair so far: a family that shrank would make the others' level too easy.
            compared.append(replace(effect, words=words))
        assert plan is not None  # only plans have families
        found += _judged(family, compared, plan)
    return found


def counted_values(effect: Effect, plan: Plan) -> Array:
    """One value a base policy, of the seeds that a verdict may count."""
    places = [effect.seeds.index(seed) for seed in plan.counted(effect.seeds)]
    return per_base([effect.differences[place] for place in places], [effect.bases[place] for place in places])


def families_of(runs: Runs, plan: Plan | None, reference: str | None, metric: str) -> tuple[Family, ...]:
    """The registered families; of a plan that named no contrasts, the family that it named, in its primary metric."""
    if plan is None or plan.event or plan.families or plan.pilot:
        return plan.families if plan else ()
    known = contrasts(runs.usable.arms, reference)
    name = plan.family or primary_family(known)
    final = next((run.config.get("evaluation", {}).get("final_samples") for run in runs), None)
    words = in_words(metric, final)
    members = tuple(
        Registered(c.label, c.technique, c.weights, metric, words) for c in known if name and c.family == name
    )
    return (Family(str(name), plan.alpha, members),) if members else ()


def _judged(family: Family, compared: Sequence[Effect], plan: Plan) -> list[Effect]:
    """One look: Holm over exact p-values of the registered seeds. Several: alpha is spent over them."""
    units = [counted_values(effect, plan) for effect in compared]
    several = len(plan.looks) > 1
    looks = plan.looks if several else (max([1, *map(len, units)]),)
    first = looks[0]
    exact = [tested(values[:first])[1] if len(values) >= first else None for values in units]
    adjusted = holm([1.0 if p is None else p for p in exact])
    at = decisions(units, looks, family.alpha)
    rows = []
    for effect, values, look, p_holm in zip(compared, units, at, adjusted, strict=True):
        reached = max((n for n in looks if n <= len(values)), default=len(values))
        # Of a study that looks once and is not complete, all that there is: it has no verdict.
        estimate, p = tested(values[:reached]) if several or reached else (effect.estimate, effect.p)
        if several and len(values) >= first:
            low, high = interval(values, looks) or (None, None)
            estimate = replace(estimate, low=low, high=high)
        verdict = "undecided"
        if len(values) < first:
            there = {*effect.seeds} & {*plan.seeds}
            verdict = f"at {len(values)} of {first}" if several else f"at {len(there)} of {len(plan.seeds)}"
        elif look:
            # Later pairs may have turned the mean.
            decided = "up" if np.mean(values[:look]) > 0 else "down"
            verdict = f"{decided} at {look} of {looks[-1]}" if several else decided
        elif not several and family.margin and _within(values[:reached], family):
            verdict = "within the margin"
        shown = None if several or len(values) < first else p_holm
        judged = replace(effect, estimate=estimate, p=p, adjusted=shown, verdict=verdict)
        rows.append(replace(judged, kind="registered", alpha=family.alpha))
    return rows


def _within(values: Array, family: Family) -> bool:
    """True if the whole interval lies within the margin, at the family's alpha shared among its comparisons."""
    # 1 - 2 alpha: two one-sided tests at alpha each (Schuirmann 1987).
    wide = t_interval(values, 1 - 2 * family.alpha / len(family.contrasts))
    assert family.margin is not None
    return wide.low is not None and wide.high is not None and max(-wide.low, wide.high) <= family.margin


def effects_on_every_metric(
    runs: Runs, found: Sequence[Contrast], base_of: Mapping[int, str] | None = None
) -> list[Effect]:
    """Effects on all metrics that describe the policy or its training, adjusted together, largest first.

    Effects are ordered by their mean over the standard deviation of the bases. Only seeds that all comparisons have
    count, so that one flip of signs means the same for all. A metric that some run lacks, or whose pairs all differ by
    the same amount, is left out.
    """
    effects = [
        (contrast, key, by_seed(contrast, table))
        for key in filter(is_outcome, runs.usable.keys())
        for table in [scores(runs, key)]
        for contrast in found
    ]
    seeds = sorted({seed for _, _, pairs in effects for seed in pairs})
    # The same seeds for all, or one flip of signs would not mean the same for each metric.
    effects = [entry for entry in effects if len(entry[2]) == len(seeds) and _spread(entry[2])]
    if len(seeds) < 2 or not effects:
        return []
    pairs_of = np.array([[pairs[seed] for _, _, pairs in effects] for seed in seeds])
    values = per_base(pairs_of, [(base_of or {}).get(seed, str(seed)) for seed in seeds])
    adjusted = max_t_p(values)
    order = np.argsort(-np.abs(standardised(values)), kind="stable")
    return [
        Effect(contrast, key, in_words(key), t_interval(values[:, i]), None, float(adjusted[i]))
        for i, (contrast, key, _) in ((i, effects[i]) for i in order)
    ]


def _spread(pairs: Mapping[int, float]) -> bool:
    x = np.array(list(pairs.values()))
    return len(x) > 1 and float(np.std(x)) > 1e-9 * float(np.max(np.abs(x)) or 1)
