"""The update of a recorded step at settings that were not replayed, from one small table.

An update is a sum over tokens, g = sum_t c_t grad log pi(t): the switches and sliders decide the c_t, the gradients of
the log-probs are the step's own. For a direction d, s_t = <grad log pi(t), d> is the derivative of the log-prob of
token t along d, so <g, d> = sum_t c_t s_t at any setting. Directions along the gradients of the replayed combinations
hold most of every update and take that part exactly; random ones across them take the squared length of the rest,
E <g, v>^2 = |g|^2 for v of independent standard normal entries (Hutchinson's estimator), with a relative standard
deviation of (2 / K)^0.5.

All at the weights before the step: the later updates' own weights are what the sketch leaves out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

NUM_ACROSS = 16
"""Random directions."""
MOST_ALONG = 16
"""Directions along gradients; each is as large as the weights."""
SMALL_REST = 0.01
"""A gradient of whose square less than this share lies across the directions so far gives no new one."""
STEP = 1e-4
"""Of the weights' norm: how far they move to either side for a derivative."""


@dataclass
class Directions:
    """Orthonormal directions along gradients, the first along the first gradient that was added."""

    along: list[list[Tensor]] = field(default_factory=list)

    def add(self, gradient: Sequence[Tensor]) -> None:
        rest = self._across(gradient)
        norm, whole = _dot(rest, rest) ** 0.5, _dot(gradient, gradient) ** 0.5
        if len(self.along) < MOST_ALONG and norm > SMALL_REST**0.5 * whole:
            self.along.append([x / norm for x in rest])

    def coordinates(self, gradient: Sequence[Tensor]) -> list[float]:
        """[R] of a gradient along the directions."""
        return [_dot(gradient, d) for d in self.along]

    def __len__(self) -> int:
        return len(self.along) + (NUM_ACROSS if self.along else 0)

    def __iter__(self) -> Iterator[list[Tensor]]:
        """Those along the gradients, then the random ones, one at a time."""
        yield from self.along
        generator = torch.Generator().manual_seed(0)
        for _ in range(len(self) - len(self.along)):
            yield self._across([torch.randn(d.shape, generator=generator).to(d) for d in self.along[0]])

    def _across(self, vector: Sequence[Tensor]) -> list[Tensor]:
        """The part of a vector across the directions so far."""
        rest = [x.clone() for x in vector]
        for d in self.along:
            product = _dot(rest, d)
            for x, y in zip(rest, d, strict=True):
                x.sub_(y, alpha=product)
        return rest


@torch.no_grad()
def derivative(weights: Sequence[Tensor], direction: Sequence[Tensor], function: Callable[[], Tensor]) -> Tensor:
    """Float64 central difference of `function()` along a direction of `weights`, which are as before afterwards."""
    before = [w.clone() for w in weights]
    step = STEP * (_dot(weights, weights) / _dot(direction, direction)) ** 0.5
    found = []
    for sign in (1, -1):
        for w, b, d in zip(weights, before, direction, strict=True):
            w.copy_(b + sign * step * d)
        found.append(function().double())
    for w, b in zip(weights, before, strict=True):
        w.copy_(b)
    return (found[0] - found[1]) / (2 * step)


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(sum(torch.dot(x.flatten().double(), y.flatten().double()) for x, y in zip(a, b, strict=True)))
