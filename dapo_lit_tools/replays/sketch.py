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
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dapo_lit.seeds import DIRECTIONS

NUM_ACROSS = 16
"""Random directions."""
MOST_ALONG = 16
"""Directions along gradients; each is a file as large as the weights."""
SMALL_REST = 0.01
"""A gradient of whose square less than this share lies across the directions so far gives no new one."""
STEP = 1e-4
"""How far weights move to either side for a derivative, as a share of their norm."""


class Directions:
    """Orthonormal directions along gradients, the first along the first gradient that was added.

    They are files in `folder`, read to the CPU one at a time: together they are many times as large as the weights.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.num_along = 0

    def add(self, gradient: Sequence[Tensor]) -> list[float]:
        """[R] coordinates of a gradient along the directions, with its own if much of it lies across the others."""
        rest, coordinates = self._across(gradient)
        norm, whole = _dot(rest, rest) ** 0.5, _dot(gradient, gradient) ** 0.5
        if self.num_along < MOST_ALONG and norm > SMALL_REST**0.5 * whole:
            torch._foreach_div_(rest, norm)
            save_weights(self._file(self.num_along), rest)
            self.num_along += 1
            coordinates.append(norm)
        return coordinates

    def __len__(self) -> int:
        return self.num_along + (NUM_ACROSS if self.num_along else 0)

    def __iter__(self) -> Iterator[list[Tensor]]:
        """Those along the gradients, then the random ones, one at a time."""
        yield from self._along()
        generator = torch.Generator(device="cpu").manual_seed(DIRECTIONS)
        for _ in range(len(self) - self.num_along):
            first = next(self._along())
            yield self._across([torch.randn(d.shape, generator=generator, device="cpu").to(d) for d in first])[0]

    def _file(self, place: int) -> Path:
        return self._folder / f"direction_{place}.safetensors"

    def _along(self) -> Iterator[list[Tensor]]:
        for place in range(self.num_along):
            yield saved_weights(self._file(place))

    def _across(self, vector: Sequence[Tensor]) -> tuple[list[Tensor], list[float]]:
        """The part of a vector across the directions so far, and its coordinates along them."""
        rest, coordinates = [x.to("cpu", copy=True) for x in vector], []
        for direction in self._along():
            coordinates.append(_dot(rest, direction))
            for x, y in zip(rest, direction, strict=True):
                x.sub_(y, alpha=coordinates[-1])
        return rest, coordinates


def save_weights(file: Path, weights: Sequence[Tensor]) -> None:
    save_file({str(place): w.detach().contiguous() for place, w in enumerate(weights)}, file)


def saved_weights(file: Path) -> list[Tensor]:
    """In the order in which they were saved, on the CPU; read from the disk when they are used."""
    found = load_file(file)
    return [found[str(place)] for place in range(len(found))]


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
