"""p-values of many metrics together: the signs of whole bases are flipped, the same for all metrics and comparisons,
and each |t| is compared with the largest |t| of every flip.

How metrics depend on each other needs no model, and no metric has to be chosen beforehand.
"""

import numpy as np

from dapo_lit.study.compare.statistics import Array

FLIPS = 4096
"""All sign flips up to 12 bases, random ones beyond."""


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
    array([0.25, 0.75])
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
