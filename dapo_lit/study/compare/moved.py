"""What moved: effects on every metric that describes the policy or its training, largest first. Exploratory.

Effects are standardised by the spread of their pairs. Their p-values are adjusted together by the maximum statistic:
the signs of whole pairs are flipped, the same for all metrics and comparisons, and each |t| is compared with the
largest |t| of every flip. How metrics depend on each other needs no model, and none has to be chosen beforehand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dapo_lit.study.compare.contrasts import Contrast, by_seed
from dapo_lit.study.compare.statistics import Array, Estimate, fixed_bases_interval
from dapo_lit.study.read.metric_words import is_outcome
from dapo_lit.study.read.outcomes import scores
from dapo_lit.study.read.runs import Runs

FLIPS = 4096
"""All sign flips up to 12 pairs, random ones beyond."""


@dataclass(frozen=True)
class Moved:
    """A comparison's effect on one metric."""

    contrast: Contrast
    key: str
    estimate: Estimate
    size: float
    """The mean difference in standard deviations of the paired difference."""
    p: float
    """Adjusted over all metrics and comparisons that were looked at."""


def moved(runs: Runs, found: Sequence[Contrast], base_of: Mapping[int, int] | None = None) -> list[Moved]:
    """Every comparison's effect on every metric, largest standardised effect first.

    Only seeds that all comparisons have count, so that one flip of signs means the same for all. A metric that some
    run lacks, or whose pairs all differ by the same amount, is left out.
    """
    effects: list[tuple[Contrast, str, dict[int, float]]] = []
    for key in filter(is_outcome, runs.usable.keys()):
        table = scores(runs, key)
        effects += [(contrast, key, by_seed(contrast, table)) for contrast in found]
    seeds = sorted(set.union(*(set(pairs) for _, _, pairs in effects))) if effects else []
    effects = [entry for entry in effects if len(entry[2]) == len(seeds) and _spread(entry[2])]
    if len(seeds) < 2 or not effects:
        return []
    values = np.array([[pairs[seed] for _, _, pairs in effects] for seed in seeds])
    bases = [(base_of or {}).get(seed, seed) for seed in seeds]
    rows = [
        Moved(contrast, key, fixed_bases_interval(column, bases), float(size), float(p))
        for (contrast, key, _), column, size, p in zip(
            effects, values.T, standardised(values, bases), max_t_p(values, bases), strict=True
        )
    ]
    return sorted(rows, key=lambda row: -abs(row.size))


def _spread(pairs: Mapping[int, float]) -> bool:
    x = np.array(list(pairs.values()))
    return len(x) > 1 and float(np.std(x)) > 1e-9 * float(np.max(np.abs(x)) or 1)


def standardised(values: Array, bases: Sequence[int]) -> Array:
    """Mean over bases divided by the standard deviation within them [metrics], from differences [pairs, metrics].

    >>> standardised(np.array([[1.0], [3.0]]), [0, 1])
    array([1.41421356])
    """
    groups = _groups(bases)
    return _t(values, np.ones((1, len(values))), groups)[0] * _scale(groups)


def max_t_p(values: Array, bases: Sequence[int]) -> Array:
    """Adjusted two-sided p of each metric [metrics]: the share of sign flips whose largest |t| is at least its own.

    Args:
        values: paired differences [pairs, metrics]. One flip turns the sign of a pair in all its metrics.
        bases: the base policy of each pair; only the spread within bases counts.

    >>> max_t_p(np.array([[1.0, 0.1], [1.2, -0.1], [0.9, 0.2]]), [0, 1, 2])  # all signs equal, the most extreme of 8
    array([0.25, 1.  ])
    """
    groups = _groups(bases)
    observed = np.abs(_t(values, np.ones((1, len(values))), groups)[0])
    signs = _signs(len(values))
    largest = np.concatenate([np.max(np.abs(_t(values, part, groups)), axis=1) for part in np.array_split(signs, 16)])
    return np.mean(largest[:, None] >= observed * (1 - 1e-9), axis=0)


def _signs(pairs: int) -> Array:
    """Sign flips [flips, pairs], the first of them all +1."""
    if 2**pairs <= FLIPS:
        return 1.0 - 2.0 * ((np.arange(2**pairs)[:, None] >> np.arange(pairs)) & 1)
    drawn = 1.0 - 2.0 * np.random.default_rng(0).integers(0, 2, (FLIPS, pairs))
    drawn[0] = 1.0
    return drawn


def _groups(bases: Sequence[int]) -> list[Any]:
    """Places of the pairs of each base; one group where no base has two pairs, as where every seed has its own."""
    codes = np.asarray(bases)
    found = [np.flatnonzero(codes == base) for base in np.unique(codes)]
    return found if len(found) < len(codes) else [np.arange(len(codes))]


def _scale(groups: Sequence[Any]) -> float:
    return float(sum(1 / len(group) for group in groups) ** 0.5 / len(groups))


def _t(values: Array, signs: Array, groups: Sequence[Any]) -> Array:
    """t of every flip and metric [flips, metrics]; a flip changes sums, never the sum of squares."""
    sums = [signs[:, group] @ values[group] for group in groups]
    within = np.sum(values**2, axis=0) - sum(s**2 / len(g) for s, g in zip(sums, groups, strict=True))
    freedom = len(values) - len(groups)
    mean = sum(s / len(g) for s, g in zip(sums, groups, strict=True)) / len(groups)
    floor = 1e-12 * np.sum(values**2, axis=0)  # all pairs alike after a flip: the spread is rounding
    return mean / (np.sqrt(np.maximum(within, floor) / freedom) * _scale(groups))
