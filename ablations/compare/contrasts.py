"""Comparisons of arms, in named families, with their values over seeds and base policies.

A contrast is a weighting of arms: a difference of two arms, a main effect and an interaction are all one number a seed,
with one interval and one exact test.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ablations.compare.statistics import Estimate, per_base, tested
from ablations.designs import Arm, cube, half_fraction, ladder, read_arm
from ablations.errors import suggestion
from ablations.read.outcomes import bases as bases_of
from ablations.read.outcomes import window_mean
from ablations.read.runs import Runs
from ablations.techniques import DAPO, LADDER, NAIVE_GRPO, REGISTER, is_own


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
class Effect:
    """A row of the table of effects: a contrast on one outcome, over seeds and base policies."""

    contrast: Contrast
    outcome: str
    """The key of the metric."""
    words: str
    estimate: Estimate
    """Over base policies, n = 0 without a seed that all arms have; of several looks, what none has rejected."""
    p: float | None
    """Sign-flip test over base policies; None below two."""
    adjusted: float | None = None
    """Within the registered family, or over all metrics of the exploratory ones; None where several looks decide."""
    kind: str = "exploratory"
    """registered or exploratory."""
    verdict: str = ""
    """`up`, `down`, `within the margin`, `undecided` or `at 8 of 12`; empty for exploratory rows."""
    alpha: float | None = None
    """The level of its family."""
    seeds: tuple[int, ...] = ()
    bases: tuple[str, ...] = ()
    """The base policy of each seed."""
    differences: tuple[float, ...] = ()

    @property
    def decided(self) -> bool:
        return self.verdict.split(" ")[0] in ("up", "down")

    @property
    def units(self) -> str:
        """The unit of n: base policies; where all seeds share one, its runs, and the result is about this policy."""
        several = len(set(self.bases)) > 1 or len(self.seeds) == 1
        return "base policies" if several else "runs of one base policy, of which it speaks"

    @property
    def by_base(self) -> dict[str, float]:
        """The mean difference at each base policy."""
        names = list(dict.fromkeys(self.bases))
        means = map(float, per_base(self.differences, self.bases))
        return dict(zip(names, means, strict=True)) if len(names) > 1 else {}


def contrasts(arms: Sequence[str], reference: str | None = None) -> list[Contrast]:
    """Every contrast that these arms allow, families in the order of a report."""
    names = set(arms)
    found = [*_factorial(names), *_own_techniques(arms)]
    for suffix in dict.fromkeys(arm.partition("@")[2] for arm in arms):
        at = f"@{suffix}" if suffix else ""
        where = f" at {suffix}" if suffix else ""
        found += _one_technique(names, at, where)
    for arm in arms:
        base, _, suffix = arm.partition("@")
        # An arm with a setting is compared with the same arm without it, not with the study's reference.
        control = base if base in names else reference
        if suffix and control and control in names - {arm}:
            found.append(difference("settings", f"{suffix} ({base})", None, arm, control))
    covered = {arm for contrast in found for arm in contrast.weights}
    for arm in arms if reference in names else []:
        if arm not in covered and arm != reference and reference:
            found.append(difference("against the reference", f"{arm} - {reference}", None, arm, reference))
    return found


def pair(family: str, text: str, arms: Collection[str]) -> Contrast:
    """The comparison that `text` names: of two arms, `treated - control`, or of two such differences,
    `(treated - control) - (treated - control)`: how much more the first change is worth than the second.

    Raises ValueError: it does not name two or four of `arms`.
    """
    parts = text.removeprefix("(").removesuffix(")").split(") - (") if text.startswith("(") else [text]
    weights: dict[str, float] = {}
    for sign, part in zip((1.0, -1.0), parts, strict=False):
        treated, _, control = part.partition(" - ")
        for name, weight in ((treated, sign), (control, -sign)):
            if name not in arms:
                raise ValueError(
                    f"{text!r} does not name arms, as `treated - control` or `(treated - control) - (treated - "
                    f"control)` do; {suggestion(name, arms)}"
                )
            weights[name] = weights.get(name, 0.0) + weight
    if len(parts) > 2 or not all(weights.values()) or len(weights) != 2 * len(parts):
        raise ValueError(f"{text!r} is not a difference of two different arms, or of two such differences")
    return Contrast(family, text, None, weights)


def difference(family: str, label: str, technique: str | None, treated: str, control: str) -> Contrast:
    """One arm minus another."""
    return Contrast(family, label, technique, {treated: 1.0, control: -1.0})


def _one_technique(names: set[str], at: str, where: str) -> list[Contrast]:
    """The three views of a technique: its rung of the ladder, added to GRPO, and left out of DAPO."""
    rungs = zip(LADDER, itertools.pairwise(ladder()), strict=True)
    views = [("ladder", f"+ {technique}", technique, above, below) for technique, (below, above) in rungs]
    views += [("alone on GRPO", t, t, Arm(NAIVE_GRPO | {t}), Arm(NAIVE_GRPO)) for t in REGISTER]
    for t in REGISTER:
        label = t if t in DAPO else f"{t} (added)"
        views.append(("left out of DAPO", label, t, Arm(DAPO | {t}), Arm(DAPO - {t})))
    return [
        difference(view + where, label, technique, treated.name + at, control.name + at)
        for view, label, technique, treated, control in views
        if {treated.name + at, control.name + at} <= names
    ]


ADDED = "added"
"""The family of techniques in files of the user's."""


def _own_techniques(arms: Sequence[str]) -> list[Contrast]:
    """Each technique in a file of the user's, added to an arm that is there without it."""
    found = []
    for name in arms:
        vector, at, settings = name.partition("@")
        on = _on(vector) or frozenset()
        for technique in filter(is_own, sorted(on)):
            without = Arm(on - {technique}).name
            if without + at + settings in arms:
                label = f"{technique} (added to {without + at + settings})"
                found.append(difference(ADDED, label, None, name, without + at + settings))
    return found


FEWEST_FACTORS = 5
"""Half of the cube of fewer techniques confuses main effects with interactions; those are compared in pairs."""


def _factorial(names: set[str]) -> list[Contrast]:
    """Main effects and pairwise interactions of the techniques in which the arms differ, where the arms hold the whole
    cube of these or its half."""
    vectors = {name: on for name in names if (on := _on(name)) is not None}
    factors = [t for t in REGISTER if len({t in on for on in vectors.values()}) == 2]
    full, half = ({arm.name for arm in arms(factors)} for arms in (cube, half_fraction))
    # In part of a cube a main effect would be confused with what is missing.
    if len(factors) < FEWEST_FACTORS or not half <= names:
        return []
    cells = sorted(full if full <= names else half)
    sign = {cell: {t: 1 if t in vectors[cell] else -1 for t in factors} for cell in cells}
    # Half of the cells have the technique: the weights of each side sum to 1.
    scale = len(cells) / 2
    # mean with it - mean without it
    found = [Contrast("main effects", t, t, {cell: sign[cell][t] / scale for cell in cells}) for t in factors]
    for a, b in itertools.combinations(factors, 2):
        # half of: effect of a with b on - effect of a with b off; its variance is that of a main effect
        weights = {cell: sign[cell][a] * sign[cell][b] / scale for cell in cells}
        found.append(Contrast("interactions", f"{a} x {b}", None, weights))
    return found


def _on(name: str) -> frozenset[str] | None:
    """The techniques of an arm without settings; None for other arms and other algorithms."""
    try:
        return None if "@" in name else read_arm(name).on
    except ValueError:
        return None


def by_seed(contrast: Contrast, table: Mapping[str, Mapping[int, float]]) -> dict[int, float]:
    """A contrast's value at each seed that all its arms have."""
    # A seed that one arm lacks is left out of all: differences are paired, and the missing run may have been the hard
    # one.
    shared = set.intersection(*(set(table.get(arm, {})) for arm in contrast.weights))
    return {s: sum(w * table[arm][s] for arm, w in contrast.weights.items()) for s in sorted(shared)}


def compare(
    contrast: Contrast,
    scores: Mapping[str, Mapping[int, float]],
    base_of: Mapping[int, str] | None = None,
    outcome: str = "",
    words: str = "",
) -> Effect:
    """One contrast over the seeds that all its arms have.

    base_of: the base policy of each seed; without it every seed counts as its own.
    """
    values = by_seed(contrast, scores)
    bases = tuple((base_of or {}).get(seed, str(seed)) for seed in values)
    estimate, p = tested(per_base(list(values.values()), bases))
    return Effect(
        contrast, outcome, words, estimate, p, seeds=tuple(values), bases=bases, differences=tuple(values.values())
    )


def compare_on(runs: Runs, contrast: Contrast, key: str, steps: tuple[int, int] | None = None) -> Effect:
    """One contrast on a metric of these runs, over rollout steps or their last values, bases as they recorded them."""
    table = {
        arm: {run.seed: v for run in runs.usable.of(arm) if (v := window_mean(run, key, steps)) is not None}
        for arm in contrast.weights
    }
    return compare(contrast, table, bases_of(runs), key)


def primary_family(found: Sequence[Contrast]) -> str | None:
    """The family that a study decides unless it registers others: main effects, else the largest."""
    families = [c.family for c in found if c.family != "interactions"]
    if not families:
        return None
    return "main effects" if "main effects" in families else max(dict.fromkeys(families), key=families.count)
