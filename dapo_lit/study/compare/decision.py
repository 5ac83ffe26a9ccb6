"""The one rule by which a study decides: the sign-flip test over base policies, Holm-adjusted over its family.

The differences of a base policy's seeds are averaged first (`statistics.per_base`). If a technique did nothing, the two
arms of a base could change places; the test counts how many of the 2^n ways to do so give a mean difference as large.
Intervals decide nothing. For an event, which a run has (1) or has not (0), this test is McNemar's.

Which families a study decides is registered before its first run; other comparisons are exploratory.
"""

from collections.abc import Sequence

import numpy as np

from dapo_lit.study.compare.statistics import Array


def sign_flip_p(differences: Sequence[float] | Array) -> float:
    """Exact two-sided p of the mean of paired differences over all 2^n sign flips.

    Valid for two arms whatever the distribution of outcomes, because they could change places if they were equal. For
    main effects and interactions it assumes that differences are symmetric. The smallest p of n values is 2 / 2^n.

    >>> sign_flip_p([1.0, 2.0, 3.0])
    0.25

    Raises:
        ValueError: more than 44 differences (2^22 sums a half); none.
    """
    x = np.asarray(differences, dtype=float)
    if not 0 < len(x) <= 44:
        raise ValueError(f"the exact sign-flip test takes 1 to 44 differences, got {len(x)}")
    left, right = _signed_sums(x[: len(x) // 2]), np.sort(_signed_sums(x[len(x) // 2 :]))
    # Sums that are equal but for rounding count: accuracies tie often, and packed cells hold them in float32.
    limit = abs(float(np.sum(x))) - 1e-5 * float(np.sum(np.abs(x)))
    if limit <= 0:
        return 1.0
    above = len(right) - np.searchsorted(right, limit - left, side="left")
    return float(2 * np.sum(above) / 2.0 ** len(x))


def _signed_sums(x: Array) -> Array:
    sums = np.zeros(1)
    for value in x:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values of one family, in the given order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(raised, 1)
    return [float(value) for value in adjusted]


def pairs_needed(comparisons: int, alpha: float = 0.05) -> int:
    """The fewest pairs with which the test can reach alpha after Holm over this many comparisons.

    >>> pairs_needed(5), pairs_needed(1)
    (8, 6)
    """
    return int(np.ceil(np.log2(2 * comparisons / alpha)))
