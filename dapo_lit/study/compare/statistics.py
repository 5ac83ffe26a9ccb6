"""Comparisons of arms by seed: estimates with intervals, exact tests, and what a number of seeds can show.

Seeds are the unit: one seed is one trained model, and arms share their seeds (base policy, problems, noise), so
differences are paired. There are no percentile bootstraps: at three seeds their 95 % interval covers 75 %.
"""

import functools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

Array = np.ndarray


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its t-interval; one seed has none."""

    mean: float
    low: float | None
    high: float | None
    n: int
    sd: float | None


def t_interval(values: Sequence[float] | Array, level: float = 0.95) -> Estimate:
    """Mean and Student t-interval of independent values, paired differences for example.

    >>> t_interval([1.0, 2.0, 3.0]).low  # 2 - 4.303 / sqrt(3)
    -0.48...

    Raises:
        ValueError: there is no value, or one is not finite.
    """
    x = np.asarray(values, dtype=float)
    if len(x) == 0 or not np.all(np.isfinite(x)):
        raise ValueError(f"an interval needs finite values, got {x.tolist()}")
    mean = float(np.mean(x))
    if len(x) == 1:
        return Estimate(mean, None, None, 1, None)
    sd = float(np.std(x, ddof=1))
    half = float(stats.t.ppf(0.5 + level / 2, len(x) - 1)) * sd / len(x) ** 0.5
    return Estimate(mean, mean - half, mean + half, len(x), sd)


def sign_flip_p(differences: Sequence[float] | Array) -> float:
    """Exact two-sided p of the mean of paired differences over all 2^n sign flips.

    Valid for any distribution in which the difference of two equal arms is symmetric about 0. The smallest p that n
    seeds can give is 2 / 2^n.

    >>> sign_flip_p([1.0, 2.0, 3.0])
    0.25

    Raises:
        ValueError: more than 44 differences (2^22 sums a half); none.
    """
    x = np.asarray(differences, dtype=float)
    if not 0 < len(x) <= 44:
        raise ValueError(f"the exact sign-flip test takes 1 to 44 differences, got {len(x)}")
    left, right = _signed_sums(x[: len(x) // 2]), np.sort(_signed_sums(x[len(x) // 2 :]))
    limit = abs(float(np.sum(x))) - 1e-9 * float(np.sum(np.abs(x)))  # sums that are equal but for rounding count
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


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar test on the discordant pairs of two arms with yes/no outcomes.

    >>> mcnemar_p(0, 6)
    0.03125
    """
    discordant = only_first + only_second
    return float(stats.binomtest(only_first, discordant).pvalue) if discordant else 1.0


def iqm(values: Sequence[float] | Array) -> float:
    """Interquartile mean: the mean without the lowest and highest quarter (rounded down) of the values.

    >>> iqm([0.0, 1.0, 2.0, 30.0])
    1.5
    """
    return float(stats.trim_mean(np.asarray(values, dtype=float).ravel(), 0.25))


def probability_of_improvement(treated: Sequence[float] | Array, control: Sequence[float] | Array) -> float:
    """Chance that a run of the first arm beats a run of the second, ties counting half, over all pairs of runs.

    >>> probability_of_improvement([1.0, 3.0], [1.0, 2.0])
    0.625
    """
    a, b = np.asarray(treated, dtype=float)[:, None], np.asarray(control, dtype=float)[None, :]
    return float(np.mean((a > b) + 0.5 * (a == b)))


def two_clusters(values: Sequence[float] | Array) -> float | None:
    """A threshold between two clusters of outcomes, None where there is one cluster.

    Two clusters: the widest gap between neighbours is at least half of the range, with two values or more on each side.
    Where runs either take off or do not, means and t-intervals mislead (they cover 80 to 89 % instead of 95), so counts
    and exact tests are reported.
    """
    x = np.sort(np.asarray(values, dtype=float))
    if len(x) < 6 or x[-1] == x[0]:
        return None
    gaps = np.diff(x)
    inner = gaps[1:-1]
    widest = int(np.argmax(inner)) + 1
    if gaps[widest] < 0.5 * (x[-1] - x[0]):
        return None
    return float((x[widest] + x[widest + 1]) / 2)


_gauss_legendre = functools.cache(np.polynomial.legendre.leggauss)


def paired_t_power(effect_sd: float, n: int, alpha: float = 0.05) -> float:
    """Power of the two-sided paired t-test at an effect given in standard deviations of the paired difference.

    Integrates the normal tail over the distribution of the estimated standard deviation; scipy's noncentral t is NaN
    for some large effects.
    """
    critical = stats.t.ppf(1 - alpha / 2, n - 1)
    shift = effect_sd * n**0.5

    last = 1 + 8 / (n - 1) ** 0.5
    nodes, weights = _gauss_legendre(200)
    s, weights = (nodes + 1) / 2 * last, weights / 2 * last  # estimated over true standard deviation
    tail = stats.norm.sf(critical * s - shift) + stats.norm.cdf(-critical * s - shift)
    return float(np.sum(weights * tail * stats.chi.pdf(s * (n - 1) ** 0.5, n - 1)) * (n - 1) ** 0.5)


def smallest_effect(n: int, power: float = 0.8, alpha: float = 0.05) -> float | None:
    """The smallest effect (in standard deviations of the paired difference) that n seeds find with this power.

    None at n = 1, where no effect can be found.
    """
    if n < 2:
        return None
    return float(optimize.brentq(lambda effect: paired_t_power(effect, n, alpha) - power, 0.0, 100.0))


def seeds_needed(effect_sd: float, power: float = 0.8, alpha: float = 0.05, limit: int = 500) -> int | None:
    """The fewest seeds that find such an effect with this power; None beyond `limit`."""
    if effect_sd == 0 or paired_t_power(abs(effect_sd), limit, alpha) < power:
        return None
    return bisect_left(range(limit), power, lo=2, key=lambda n: paired_t_power(abs(effect_sd), n, alpha))


def seeds_for_exact(comparisons: int, alpha: float = 0.05) -> int:
    """The fewest seeds at which the exact test can reach alpha after Holm over this many comparisons.

    >>> seeds_for_exact(5), seeds_for_exact(1)
    (8, 6)
    """
    return int(np.ceil(np.log2(2 * comparisons / alpha)))
