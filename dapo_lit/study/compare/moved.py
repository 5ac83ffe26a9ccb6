"""What moved: effects on every metric that describes the policy or its training, largest first. Exploratory.

Effects are standardised by the spread of their pairs. Their p-values are adjusted together by the maximum statistic:
the signs of whole pairs are flipped, the same for all metrics and comparisons, and each |t| is compared with the
largest |t| of every flip. How metrics depend on each other needs no model, and none has to be chosen beforehand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dapo_lit.study.compare.contrasts import Contrast, by_seed
from dapo_lit.study.compare.statistics import Array, Estimate, per_base, t_interval
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


def moved(runs: Runs, found: Sequence[Contrast], base_of: Mapping[int, str] | None = None) -> list[Moved]:
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
    pairs_of = np.array([[pairs[seed] for _, _, pairs in effects] for seed in seeds])
    values = per_base(pairs_of, [(base_of or {}).get(seed, str(seed)) for seed in seeds])
    rows = [
        Moved(contrast, key, t_interval(column), float(size), float(p))
        for (contrast, key, _), column, size, p in zip(
            effects, values.T, standardised(values), max_t_p(values), strict=True
        )
    ]
    return sorted(rows, key=lambda row: -abs(row.size))


def _spread(pairs: Mapping[int, float]) -> bool:
    x = np.array(list(pairs.values()))
    return len(x) > 1 and float(np.std(x)) > 1e-9 * float(np.max(np.abs(x)) or 1)


def standardised(values: Array) -> Array:
    """Mean divided by the standard deviation [metrics], from differences [bases, metrics].

    >>> standardised(np.array([[1.0], [3.0]]))
    array([1.41421356])
    """
    return _t(values, np.ones((1, len(values))))[0] / len(values) ** 0.5


def max_t_p(values: Array) -> Array:
    """Adjusted two-sided p of each metric [metrics]: the share of sign flips whose largest |t| is at least its own.

    Args:
        values: paired differences [bases, metrics]. One flip turns the sign of a base in all its metrics.

    >>> max_t_p(np.array([[1.0, 0.1], [1.2, -0.1], [0.9, 0.2]]))  # all signs equal, the most extreme of 8
    array([0.25, 1.  ])
    """
    observed = np.abs(_t(values, np.ones((1, len(values))))[0])
    signs = _signs(len(values))
    largest = np.concatenate([np.max(np.abs(_t(values, part)), axis=1) for part in np.array_split(signs, 16)])
    return np.mean(largest[:, None] >= observed * (1 - 1e-9), axis=0)


def _signs(bases: int) -> Array:
    """Sign flips [flips, bases], the first of them all +1."""
    if 2**bases <= FLIPS:
        return 1.0 - 2.0 * ((np.arange(2**bases)[:, None] >> np.arange(bases)) & 1)
    drawn = 1.0 - 2.0 * np.random.default_rng(0).integers(0, 2, (FLIPS, bases))
    drawn[0] = 1.0
    return drawn


def _t(values: Array, signs: Array) -> Array:
    """t of every flip and metric [flips, metrics]; a flip changes sums, never the sum of squares."""
    n, squares = len(values), np.sum(values**2, axis=0)
    mean = signs @ values / n
    spread = np.maximum(squares - n * mean**2, 1e-12 * squares)  # all alike after a flip: the spread is rounding
    return mean / np.sqrt(spread / (n - 1) / n)
