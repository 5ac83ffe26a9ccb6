"""Which arms are compared with which, in named families, and what the seeds say about each comparison.

A contrast is a weighting of arms, so that a difference of two arms, a main effect over a factorial, an interaction and
a Shapley value all are one number a seed, with one interval and one exact test.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import factorial

from dapo_lit.study.compare.events import count_pairs
from dapo_lit.study.compare.statistics import (
    Estimate,
    holm,
    iqm,
    mcnemar_p,
    probability_of_improvement,
    sign_flip_p,
    t_interval,
    two_clusters,
)
from dapo_lit.study.designs import DAPO, NAIVE_GRPO, TECHNIQUES, Arm, arm_name, ladder

SWITCHES: Mapping[str, Mapping[str, bool]] = {
    arm_name(vector): vector
    for vector in (dict(zip(TECHNIQUES, on, strict=True)) for on in itertools.product((False, True), repeat=5))
}
"""The switches of each of the 32 names."""


@dataclass(frozen=True)
class Contrast:
    """A comparison: its value at a seed is the weighted sum of the arms' outcomes."""

    family: str
    label: str
    technique: str | None
    weights: Mapping[str, float]

    @property
    def pair(self) -> tuple[str, str] | None:
        """(treated, control) where it is a plain difference of two arms."""
        if len(self.weights) != 2 or sorted(self.weights.values()) != [-1, 1]:
            return None
        treated, control = sorted(self.weights, key=lambda arm: -self.weights[arm])
        return treated, control


@dataclass(frozen=True)
class Split:
    """Outcomes in two clusters: pairs of runs counted by the side of the threshold that each arm is on."""

    threshold: float
    both: int
    only_treated: int
    only_control: int
    neither: int
    p_mcnemar: float

    @property
    def crossed(self) -> bool:
        """Whether an arm moved a pair to the other cluster. Where none did, the seeds make the clusters (a base policy
        each, say), their differences fall into one, and a t-interval of these is in order."""
        return self.only_treated + self.only_control > 0


@dataclass(frozen=True)
class Comparison:
    """What the seeds say about a contrast."""

    contrast: Contrast
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    estimate: Estimate | None
    """None without a seed that all arms of the contrast have."""
    p: float | None
    """Exact sign-flip test; None below two seeds."""
    p_holm: float | None
    iqm_treated: float | None = None
    iqm_control: float | None = None
    improvement: float | None = None
    """Probability of improvement over all pairs of runs of two arms."""
    split: Split | None = None

    def decided(self, alpha: float = 0.05) -> bool:
        """Whether the exact test, adjusted over its family, rejects equality."""
        return self.p_holm is not None and self.p_holm <= alpha


def contrasts(arms: Sequence[str], reference: str | None = None) -> list[Contrast]:
    """Every contrast that these arms allow, families in the order of a report."""
    names = set(arms)
    found = _factorial(names)
    for suffix in dict.fromkeys(arm.partition("@")[2] for arm in arms):
        at = f"@{suffix}" if suffix else ""
        where = f" at {suffix}" if suffix else ""
        found += _one_technique(names, at, where)
    for arm in arms:
        base, _, suffix = arm.partition("@")
        control = base if base in names else reference
        if suffix and control and control in names:
            found.append(_difference("settings", f"{suffix} ({base})", None, arm, control))
    covered = {arm for contrast in found for arm in contrast.weights}
    for arm in arms if reference in names else []:
        if arm not in covered and arm != reference and reference:
            found.append(_difference("against the reference", f"{arm} - {reference}", None, arm, reference))
    return found


def _difference(family: str, label: str, technique: str | None, treated: str, control: str) -> Contrast:
    return Contrast(family, label, technique, {treated: 1.0, control: -1.0})


def _one_technique(names: set[str], at: str, where: str) -> list[Contrast]:
    """The three views of a technique: its rung of the ladder, alone on GRPO, and left out of DAPO."""
    rungs = [arm.name + at for arm in ladder()]
    found = []
    for technique, (below, above) in zip(TECHNIQUES, itertools.pairwise(rungs), strict=True):
        if {below, above} <= names:
            found.append(_difference(f"ladder{where}", f"+ {technique}", technique, above, below))
    for technique in TECHNIQUES:
        alone = Arm({**NAIVE_GRPO, technique: True}).name + at
        if {alone, "naive_grpo" + at} <= names:
            found.append(_difference(f"alone on GRPO{where}", technique, technique, alone, "naive_grpo" + at))
    for technique in TECHNIQUES:
        other = Arm({**DAPO, technique: not DAPO[technique]}).name + at
        treated, control = ("dapo" + at, other) if DAPO[technique] else (other, "dapo" + at)
        if {other, "dapo" + at} <= names:
            label = technique if DAPO[technique] else f"{technique} (added)"
            found.append(_difference(f"left out of DAPO{where}", label, technique, treated, control))
    return found


def _factorial(names: set[str]) -> list[Contrast]:
    """Main effects, pairwise interactions and (full factorial) Shapley values, where the arms hold them."""
    even = {name for name, on in SWITCHES.items() if sum(on.values()) % 2 == 0}
    cells = sorted(SWITCHES) if set(SWITCHES) <= names else sorted(even) if even <= names else []
    if not cells:
        return []
    sign = {cell: {t: 1 if SWITCHES[cell][t] else -1 for t in TECHNIQUES} for cell in cells}
    half = len(cells) / 2
    found = [
        Contrast("main effects", t, t, {cell: sign[cell][t] / half for cell in cells}) for t in TECHNIQUES
    ]  # mean with it - mean without it
    found += [
        Contrast("interactions", f"{a} x {b}", None, {cell: 2 * sign[cell][a] * sign[cell][b] / half for cell in cells})
        for a, b in itertools.combinations(TECHNIQUES, 2)
    ]  # effect of a with b on - effect of a with b off
    if len(cells) == len(SWITCHES):
        found += [Contrast("Shapley values", t, t, _shapley(t)) for t in TECHNIQUES]
    return found


def _shapley(technique: str) -> dict[str, float]:
    """Weights of the mean marginal contribution over all orders in which the techniques could be added."""
    weights = {}
    for name, on in SWITCHES.items():
        others = sum(on.values()) - on[technique]
        weight = factorial(others) * factorial(len(TECHNIQUES) - 1 - others) / factorial(len(TECHNIQUES))
        weights[name] = weight if on[technique] else -weight
    return weights


def compare(contrast: Contrast, scores: Mapping[str, Mapping[int, float]]) -> Comparison:
    """One contrast over the seeds that all its arms have; Holm is left to `compare_all`."""
    per_arm = [scores.get(arm, {}) for arm in contrast.weights]
    seeds = tuple(sorted(set.intersection(*(set(values) for values in per_arm))))
    values = tuple(sum(w * scores[arm][seed] for arm, w in contrast.weights.items()) for seed in seeds)
    if not seeds:
        return Comparison(contrast, (), (), None, None, None)
    p = sign_flip_p(values) if 1 < len(seeds) <= 44 else None
    result = Comparison(contrast, seeds, values, t_interval(values), p, p)
    if contrast.pair is None:
        return result
    treated, control = ([scores[arm][seed] for seed in seeds] for arm in contrast.pair)
    threshold = two_clusters([*treated, *control])
    split = None
    # two arms that merely lie apart are two clusters as well: one arm must have runs on both sides
    if threshold is not None and any(min(arm) < threshold < max(arm) for arm in (treated, control)):
        counts = count_pairs([v > threshold for v in treated], [v > threshold for v in control])
        split = Split(threshold, *counts, mcnemar_p(counts[1], counts[2]))
    improvement = probability_of_improvement(treated, control)
    return replace(result, iqm_treated=iqm(treated), iqm_control=iqm(control), improvement=improvement, split=split)


def compare_all(found: Sequence[Contrast], scores: Mapping[str, Mapping[int, float]]) -> list[Comparison]:
    """All contrasts, the exact p-values adjusted (Holm) within each family."""
    results = [compare(contrast, scores) for contrast in found]
    for family in dict.fromkeys(contrast.family for contrast in found):
        places = [i for i, r in enumerate(results) if r.contrast.family == family and r.p is not None]
        adjusted = holm([p for i in places if (p := results[i].p) is not None])
        for place, p in zip(places, adjusted, strict=True):
            results[place] = replace(results[place], p_holm=p)
    return results


def primary_family(comparisons: Sequence[Comparison]) -> str | None:
    """The family that the sentences of a report speak of: main effects, else the one with the most comparisons."""
    families = [c.contrast.family for c in comparisons if c.contrast.family not in ("interactions", "Shapley values")]
    if not families:
        return None
    return "main effects" if "main effects" in families else max(dict.fromkeys(families), key=families.count)
