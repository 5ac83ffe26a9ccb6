"""Student's t distribution: tail, quantile and linear loss, for any positive number of degrees of freedom.

Written out because importing scipy.special takes a quarter of a second, which is a quarter of what `decide` may take;
the tests hold it against scipy. The tail is a regularised incomplete beta function, computed as a continued fraction
with Lentz's method (Numerical Recipes, 3rd edition, section 6.4).
"""

import math

SMALLEST = 1e-300
PRECISION = 1e-15


def tail(freedom: float, t: float) -> float:
    """P(T > t).

    >>> round(tail(1.0, 1.0), 12), round(tail(2.0, -math.sqrt(2)), 9)  # 1/4; 1/2 + 1/(2 sqrt 2)
    (0.25, 0.853553391)
    """
    if t < 0:
        return 1 - tail(freedom, -t)
    return _incomplete_beta(freedom / 2, 0.5, t * t / freedom) / 2


def quantile(freedom: float, upper: float) -> float:
    """The t that is exceeded with probability `upper`, at most a half.

    >>> round(quantile(2.0, 0.025), 3), round(quantile(1.0, 0.25), 9)
    (4.303, 1.0)
    """
    low, high = 0.0, 1.0
    while tail(freedom, high) > upper:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(freedom, middle) > upper else (low, middle)
    return (low + high) / 2


def linear_loss(freedom: float, z: float) -> float:
    """E[(T - z)^+], the mean by which T exceeds z >= 0; infinite up to one degree of freedom.

    >>> round(linear_loss(1e9, 0.0), 5), linear_loss(1.0, 0.0)  # 1 / sqrt(2 pi) of the normal; the Cauchy has none
    (0.39894, inf)
    """
    if freedom <= 1:
        return math.inf
    logs = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    density = math.exp(logs - (freedom + 1) / 2 * math.log1p(z * z / freedom))
    return max(0.0, (freedom + z * z) / (freedom - 1) * density - z * tail(freedom, z))


def _incomplete_beta(a: float, b: float, odds: float) -> float:
    """I_x(a, b) at x = 1 / (1 + odds), which keeps its precision where x is near 1."""
    x, rest = 1 / (1 + odds), odds / (1 + odds)
    if rest == 0:
        return 1.0
    if x == 0:
        return 0.0
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) - a * math.log1p(odds) + b * math.log(rest)
    # The fraction converges fast below the mean only; above it the other side is computed.
    if x < (a + 1) / (a + b + 2):
        return math.exp(logs) * _fraction(a, b, x) / a
    return 1 - math.exp(logs) * _fraction(b, a, rest) / b


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, 10_000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _nonzero(1 + numerator * d)
            c = _nonzero(1 + numerator / c)
            found *= c * d
        if abs(c * d - 1) < PRECISION:
            break
    return found


def _nonzero(value: float) -> float:
    return value if abs(value) > SMALLEST else SMALLEST
