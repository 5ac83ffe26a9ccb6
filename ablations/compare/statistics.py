"""Estimates over base policies with their intervals, the effect that a number of them shows, and the tests that decide.

The base policy is the unit: a technique's effect differs between bases by more than between seeds of one base, so
twelve seeds on three bases are three values. All arms of a seed share its base, problems and noise, so differences are
paired. There are no percentile bootstraps: at three values their 95 % interval covers 75 %.

A study decides by the sign-flip test over base policies, Holm-adjusted over its family. If a technique did nothing, the
two arms of a base could change places; the test counts how many of the 2^n ways to do so give a mean difference as
large. Intervals decide nothing.

Many metrics together are tested by the maximum statistic: the signs of whole bases are flipped, the same for all, and
each |t| is compared with the largest |t| of every flip. How metrics depend on each other needs no model.
"""

import functools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ablations.compare import SIGN_FLIPS

Array = np.ndarray


@dataclass(frozen=True)
class Estimate:
    """A mean over base policies with its t-interval; one value has none."""

    mean: float
    low: float | None
    high: float | None
    n: int
    sd: float | None


def t_interval(values: Sequence[float] | Array, level: float = 0.95) -> Estimate:
    """Mean and Student t-interval of independent values, paired differences for example.

    >>> t_interval([1.0, 2.0, 3.0]).low  # 2 - 4.303 / sqrt(3)
    -0.48...

    Raises ValueError: there is no value, or one is not finite.
    """
    x = np.asarray(values, dtype=float)
    if len(x) == 0 or not np.all(np.isfinite(x)):
        raise ValueError(f"an interval needs finite values, got {x.tolist()}")
    mean = float(np.mean(x))
    # No interval: a single value says nothing about variation.
    if len(x) == 1:
        return Estimate(mean, None, None, 1, None)
    sd = float(np.std(x, ddof=1))
    from scipy import stats  # a quarter of a second that `decide` does without

    half = float(stats.t.ppf(0.5 + level / 2, len(x) - 1)) * sd / len(x) ** 0.5
    return Estimate(mean, mean - half, mean + half, len(x), sd)


def per_base(values: Sequence[float] | Array, bases: Sequence[str]) -> Array:
    """The mean of each base policy's seeds, bases in their first order; values may be arrays [seeds, ...].

    Seeds that all share one base are the units themselves: the result then speaks of runs of this policy.

    >>> per_base([1.0, 3.0, 8.0], ["4", "4", "5"]), per_base([1.0, 3.0], ["4", "4"])
    (array([2., 8.]), array([1., 3.]))
    """
    x, names = np.asarray(values, dtype=float), list(dict.fromkeys(bases))
    # With one base the runs are all there is, and the sentence on the page says so.
    if len(names) < 2:
        return x
    return np.array([x[[base == name for base in bases]].mean(axis=0) for name in names])


_gauss_legendre = functools.cache(np.polynomial.legendre.leggauss)


def paired_t_power(effect_sd: float, n: int) -> float:
    """Power of the two-sided paired t-test at 5 %, at an effect given in standard deviations of the paired difference.

    Integrates the normal tail over the distribution of the estimated standard deviation; scipy's noncentral t is NaN
    for some large effects.
    """
    from scipy import stats

    critical = stats.t.ppf(0.975, n - 1)
    shift = effect_sd * n**0.5

    # Beyond it the chi density is below rounding.
    last = 1 + 8 / (n - 1) ** 0.5
    nodes, weights = _gauss_legendre(200)
    # Estimated over true standard deviation.
    s, weights = (nodes + 1) / 2 * last, weights / 2 * last
    tail = stats.norm.sf(critical * s - shift) + stats.norm.cdf(-critical * s - shift)
    return float(np.sum(weights * tail * stats.chi.pdf(s * (n - 1) ** 0.5, n - 1)) * (n - 1) ** 0.5)


POWER = 0.8
"""Probability with which a study finds an effect of the size that it is planned for."""


def smallest_effect(n: int) -> float | None:
    """The smallest effect (in standard deviations of the paired difference) that n seeds find with this power.

    None at n = 1, where no effect can be found.
    """
    from scipy import optimize

    if n < 2:
        return None
    return float(optimize.brentq(lambda effect: paired_t_power(effect, n) - POWER, 0.0, 100.0))


def seeds_needed(effect_sd: float) -> int | None:
    """The fewest seeds that find such an effect with this power; None beyond 500."""
    if effect_sd == 0 or paired_t_power(abs(effect_sd), 500) < POWER:
        return None
    return bisect_left(range(500), POWER, lo=2, key=lambda n: paired_t_power(abs(effect_sd), n))


ALL_FLIPS = 44
"""Values up to which the test counts all flips of their signs: 2^22 sums a half."""
FREE = 12
"""Signs of a group of flips that are free."""


def flips(values: int) -> Array:
    """Sign flips, the first all +1: all up to FREE values, beyond it a group of as many, which keeps the test exact.

    Half of them, because a flip and its negative have the same absolute sum. There the sign of a further value is
    the product of some of the first (Hemerik and Goeman 2018).
    """
    known = min(values, FREE)
    rows = np.arange(2 ** (known - 1))[:, None]
    signs = 1.0 - 2.0 * ((rows >> np.arange(known)) & 1)
    chosen = np.random.default_rng(SIGN_FLIPS).random((max(values - known, 0), known)) < 0.5
    further = [np.prod(signs[:, subset], axis=1) for subset in chosen]
    return np.column_stack([signs, *further])


def sign_flip_p(differences: Sequence[float] | Array) -> float:
    """Exact two-sided p of the mean of paired differences over all 2^n sign flips.

    Valid for two arms whatever the distribution of outcomes, because they could change places if they were equal. For
    main effects and interactions it assumes that differences are symmetric. The smallest p of n values is 2 / 2^n; of
    more than 44, for which a group of flips is counted, 2 / 2^12.

    >>> sign_flip_p([1.0, 2.0, 3.0])
    0.25

    Raises ValueError: there is no difference.
    """
    x = np.asarray(differences, dtype=float)
    if not len(x):
        raise ValueError("the sign-flip test needs a difference")
    # Sums that are equal but for rounding count: accuracies tie often, and packed cells hold them in float32.
    limit = abs(float(np.sum(x))) - 1e-5 * float(np.sum(np.abs(x)))
    # All differences 0, or a mean of 0: every flip is as extreme.
    if limit <= 0:
        return 1.0
    if len(x) > ALL_FLIPS:
        return float(np.mean(np.abs(flips(len(x)) @ x) >= limit))
    # Meet in the middle: 2 * 2^(n/2) sums and a binary search instead of 2^n.
    left, right = _signed_sums(x[: len(x) // 2]), np.sort(_signed_sums(x[len(x) // 2 :]))
    above = len(right) - np.searchsorted(right, limit - left, side="left")
    # Twice one side: flipping all signs gives the other.
    return float(2 * np.sum(above) / 2.0 ** len(x))


def tested(values: Sequence[float] | Array) -> tuple[Estimate, float | None]:
    """Interval and sign-flip p of one value a base policy; no p below two values."""
    if len(values) == 0:
        return Estimate(float("nan"), None, None, 0, None), None
    return t_interval(values), sign_flip_p(values) if len(values) > 1 else None


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
    # Stepping down never lowers an adjusted p: a weaker result must not pass where a stronger one failed.
    raised = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(raised, 1)
    return [float(value) for value in adjusted]


def holm_attainable(p_values: Sequence[float], values: Sequence[int]) -> list[float]:
    """Holm's adjusted p-values of exact sign-flip tests that have different numbers of values.

    Holm multiplies the smallest p by the number of tests. But the p of n values is a multiple of 2 / 2^n, so a test
    with three values (0.25 at best) cannot be the one that reaches 0.001 by chance, and need not be paid for. The
    chance that any of the tests reaches p is at most the sum, over the tests, of the largest p that each can have up to
    there (Tarone 1990, Biometrics 46; as adjusted p: Westfall and Wolfinger 1997, The American Statistician 51). It is
    stepped down as Holm is: the sum goes over the tests whose p is not smaller.

    values: the number of values behind each p.

    >>> holm_attainable([2 / 2**12, 0.25, 0.5], [12, 3, 3]), holm([2 / 2**12, 0.25, 0.5])
    ([0.00048828125, 0.5, 0.5], [0.00146484375, 0.5, 0.5])
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [1.0] * len(order), 0.0
    for place, i in enumerate(order):
        up_to = [np.floor(p_values[i] * 2 ** (values[j] - 1) + 1e-9) / 2 ** (values[j] - 1) for j in order[place:]]
        largest = max(largest, min(1.0, float(sum(up_to))))
        adjusted[i] = largest
    return adjusted


def pairs_needed(comparisons: int, alpha: float = 0.05) -> int:
    """The fewest pairs with which the test can reach alpha after Holm over this many comparisons.

    >>> pairs_needed(5), pairs_needed(1)
    (8, 6)
    """
    # The smallest p of n pairs is 2 / 2^n, and Holm multiplies it by the number of comparisons.
    return int(np.ceil(np.log2(2 * comparisons / alpha)))


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

    values: paired differences [bases, metrics]. One flip turns the sign of a base in all its metrics.

    >>> max_t_p(np.array([[1.0, 0.1], [1.2, -0.1], [0.9, 0.2]]))  # all signs equal, the most extreme of 8
    array([0.25, 0.75])
    """
    # |t| and not means, or metrics of a larger unit would decide every maximum.
    observed = np.abs(_t(values, np.ones((1, len(values))))[0])
    signs = _signs(len(values))
    largest = np.concatenate([np.max(np.abs(_t(values, part)), axis=1) for part in np.array_split(signs, 16)])
    # The identity is one of the flips, so p is never 0.
    return np.mean(largest[:, None] >= observed * (1 - 1e-9), axis=0)


def _signs(bases: int) -> Array:
    """Sign flips [flips, bases], the first of them all +1."""
    if 2**bases <= FLIPS:
        return 1.0 - 2.0 * ((np.arange(2**bases)[:, None] >> np.arange(bases)) & 1)
    drawn = 1.0 - 2.0 * np.random.default_rng(SIGN_FLIPS).integers(0, 2, (FLIPS, bases))
    # The observed signs count themselves, which keeps the test valid with random flips.
    drawn[0] = 1.0
    return drawn


def _t(values: Array, signs: Array) -> Array:
    """t of every flip and metric [flips, metrics]; a flip changes sums, never the sum of squares."""
    n, squares = len(values), np.sum(values**2, axis=0)
    mean = signs @ values / n
    # All alike after a flip: the spread is rounding.
    spread = np.maximum(squares - n * mean**2, 1e-12 * squares)
    return mean / np.sqrt(spread / (n - 1) / n)
