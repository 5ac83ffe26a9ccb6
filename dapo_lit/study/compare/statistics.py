"""Estimates over base policies with their intervals, and what a number of them can show. Verdicts are decision.py's.

The base policy is the unit: a technique's effect differs between bases by more than between seeds of one base, so
twelve seeds on three bases are three values. All arms of a seed share its base, problems and noise, so differences are
paired. There are no percentile bootstraps: at three values their 95 % interval covers 75 %.
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


def per_base(values: Sequence[float] | Array, bases: Sequence[str]) -> Array:
    """The mean of each base policy's seeds, bases in their first order; values may be arrays [seeds, ...].

    Seeds that all share one base are the units themselves: the result then speaks of runs of this policy.

    >>> per_base([1.0, 3.0, 8.0], ["4", "4", "5"]), per_base([1.0, 3.0], ["4", "4"])
    (array([2., 8.]), array([1., 3.]))
    """
    x, names = np.asarray(values, dtype=float), list(dict.fromkeys(bases))
    if len(names) < 2:
        return x
    return np.array([x[[base == name for base in bases]].mean(axis=0) for name in names])


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
