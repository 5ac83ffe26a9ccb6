"""Performance against compute as a sigmoid; a ceiling is named only where the data show one.

R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B): R0 is the start, A the ceiling, C_mid the compute at which half of the rise
is done, B the steepness (ScaleRL, arXiv 2510.13786).
"""

from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

STEEPNESS = (0.3, 8.0)
WIDEST_INTERVAL = 0.15


@dataclass(frozen=True)
class SigmoidFit:
    """A fit; `ceiling` and its interval are None where `refusal` says why."""

    start: float
    ceiling: float | None
    interval: tuple[float, float] | None
    """95 % profile interval of the ceiling, residuals taken as independent."""
    middle: float
    steepness: float
    refusal: str | None


def fit_sigmoid(compute: np.ndarray, performance: np.ndarray) -> SigmoidFit:
    """Least-squares fit with a profile interval of the ceiling.

    The ceiling is refused unless compute reaches twice C_mid and the interval is narrower than 0.15: below that, the
    data of a run fit low ceilings and a ceiling of 1 alike.

    Raises:
        ValueError: fewer than six points of positive compute, or values that are not finite.
    """
    x, y = np.asarray(compute, dtype=float), np.asarray(performance, dtype=float)
    keep = x > 0
    x, y = x[keep], y[keep]
    if len(x) < 6 or not np.all(np.isfinite(y)):
        raise ValueError(f"a sigmoid needs at least six finite points of positive compute, got {len(x)}")
    middles = np.geomspace(x.min(), 20 * x.max(), 60)
    steeps = np.geomspace(*STEEPNESS, 40)
    shapes = _shape(x, middles[:, None], steeps[None, :])  # [60, 40, points]
    start, ceiling, squares = _linear_fit(shapes, y)
    legal = (ceiling <= 1.0) & (ceiling > start) & (start >= -0.05)
    if not legal.any():
        return SigmoidFit(float(y.mean()), None, None, np.nan, np.nan, "performance does not rise with compute")
    squares = np.where(legal, squares, np.inf)
    best = np.unravel_index(np.argmin(squares), squares.shape)
    guess = np.array([start[best], ceiling[best], np.log(middles[best[0]]), np.log(steeps[best[1]])])
    fitted, residual = _polish(x, y, guess)
    r0, a, log_mid, log_b = map(float, fitted)
    freedom = max(len(x) - 4, 1)
    limit = residual * (1 + stats.f.ppf(0.95, 1, freedom) / freedom)
    low, high = _profile(x, y, fitted, limit)
    middle, refusal = float(np.exp(log_mid)), None
    if x.max() < 2 * middle:
        refusal = f"compute ends at {x.max() / middle:.1f} times the half-way point; 2 are needed"
    elif high - low > WIDEST_INTERVAL:
        refusal = f"the ceiling's interval is {low:.2f} to {high:.2f}, wider than {WIDEST_INTERVAL}"
    named = (None, None) if refusal else (a, (low, high))
    return SigmoidFit(r0, named[0], named[1], middle, float(np.exp(log_b)), refusal)


def _shape(x: np.ndarray, middle: np.ndarray, steepness: np.ndarray) -> np.ndarray:
    return 1 / (1 + (middle[..., None] / x) ** steepness[..., None])


def _linear_fit(shapes: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """With C_mid and B fixed, y is linear in the shape: start, ceiling, squared error of each shape [..., points]."""
    mean = shapes.mean(axis=-1)
    centred = shapes - mean[..., None]
    variance = np.maximum(np.sum(centred**2, axis=-1), 1e-12)
    rise = np.sum(centred * (y - y.mean()), axis=-1) / variance
    start = y.mean() - rise * mean
    squares = np.sum((y - start[..., None] - rise[..., None] * shapes) ** 2, axis=-1)
    return start, start + rise, squares


def _curve(x: np.ndarray, start: float, ceiling: float, log_middle: float, log_steepness: float) -> np.ndarray:
    return start + (ceiling - start) / (1 + np.exp(np.exp(log_steepness) * (log_middle - np.log(x))))


def _polish(x: np.ndarray, y: np.ndarray, guess: np.ndarray, ceiling: float | None = None) -> tuple[np.ndarray, float]:
    """Least squares from a guess of (start, ceiling, log C_mid, log B); returns these and the sum of squares.

    Args:
        ceiling: held at this value; None: fitted too.
    """
    low = np.array([-0.05, 0.0, np.log(x.min()) - 1, np.log(STEEPNESS[0])])
    high = np.array([1.0, 1.0, np.log(20 * x.max()), np.log(STEEPNESS[1])])
    free = [0, 1, 2, 3] if ceiling is None else [0, 2, 3]

    def parameters(p: np.ndarray) -> np.ndarray:
        return p if ceiling is None else np.insert(p, 1, ceiling)

    def miss(p: np.ndarray) -> np.ndarray:
        return _curve(x, *parameters(p)) - y

    start = np.clip(guess[free], low[free] + 1e-6, high[free] - 1e-6)
    fit = optimize.least_squares(miss, start, bounds=(low[free], high[free]))
    return parameters(fit.x), float(2 * fit.cost)


def _profile(x: np.ndarray, y: np.ndarray, best: np.ndarray, limit: float) -> tuple[float, float]:
    """The ceilings, on a grid of 0.005, just beyond which the other parameters cannot fit within `limit`."""
    ends = []
    for direction in (-0.005, 0.005):
        guess = best
        while 0 < guess[1] + direction <= 1:
            trial, squares = _polish(x, y, guess, ceiling=guess[1] + direction)
            if squares > limit:
                break
            guess = trial
        ends.append(float(np.clip(guess[1] + direction, 0.0, 1.0)))
    return ends[0], ends[1]
