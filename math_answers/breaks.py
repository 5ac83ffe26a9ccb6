r"""Where expressions with letters may break, and values for the letters around every break.

Two expressions of sums, products, whole powers, sines and the like agree everywhere if they agree at a few points. An
absolute value, a root and an inverse function may agree on one side of a break only: `|x + 5|` is `x + 5` for all x
above -5. So they are compared between all places where they may break, and beyond the last one.
"""

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mpmath import mpf

from math_answers import expression as tree
from math_answers.exact import approximate, rational

MAX_GAPS = 200
"""Intervals between breaks in which two expressions are compared; with more of them the verdict is *different*."""
_BEYOND = 8
"""The last interval ends at this multiple of the last break, because some breaks are no quotient of two numbers."""
_MIXTURES = 16
"""Points at which several letters are drawn from any interval: `|x - y|` breaks where they meet."""
_MAX_DEGREE = 8

Letters = Callable[[str], Any]
"""The value of each letter at one point."""


@dataclass(frozen=True, slots=True)
class _Gap:
    """An interval between two neighbouring absolute values at which something may break."""

    low: float
    high: float

    def value(self, name: str, point: int) -> Any:
        """A number inside, the same in every process."""
        draw = zlib.crc32(f"{name}|{point}".encode()) / 2**32 + zlib.crc32(f"{point}|{name}".encode()) / 2**64
        return self.low + mpf(draw) * (self.high - self.low)


def letters_around_breaks(*nodes: tree.Node) -> tuple[list[Letters], float] | None:
    """Values of the letters at points around every break, and the largest |log2| of a value; None if they are too many.

    One letter after another goes through all intervals while the others are drawn from any of them.
    """
    inside = [part for node in nodes for part in _broken(node)]
    if not inside:
        return [], 0.0
    ends = sorted(set().union(*map(_ends, inside)))
    gaps = [_Gap(low, high) for low, high in pairwise([ends[0] / 2, *ends, ends[-1] * _BEYOND])]
    names = sorted(set().union(*map(tree.symbols, nodes)))
    swept = [(name, gap, sign) for name in names for gap in gaps for sign in (1, -1)]
    if len(swept) > 2 * MAX_GAPS:
        return None
    points = [_point(number, gaps, *place) for number, place in enumerate(swept)]
    if len(names) != 1 or any(tree.is_unknown(part) for node in nodes for part in tree.walk(node)):
        points += [_point(len(swept) + number, gaps) for number in range(_MIXTURES)]
    return points, max(abs(math.log2(gaps[0].low)), abs(math.log2(gaps[-1].high)))


def _point(number: int, gaps: list[_Gap], swept: str = "", gap: _Gap | None = None, sign: int = 1) -> Letters:
    def value(name: str) -> Any:
        if gap is not None and name == swept:
            return sign * gap.value(name, number)
        draw = zlib.crc32(f"{name}?{number}".encode())
        return (-1 if draw % 2 else 1) * gaps[draw // 2 % len(gaps)].value(name, number)

    return value


def _broken(node: tree.Node) -> Iterator[tree.Node]:
    """What stands under an absolute value, a root or an inverse function, and holds a letter."""
    for part in tree.walk(node):
        match part:
            case tree.Call(name, (argument,)) if name == "abs" or name.startswith("arc"):
                found = argument
            case tree.Power(base, exponent) if not (
                isinstance(exponent, tree.Number) and exponent.value.denominator == 1
            ):
                found = base
            case _:
                continue
        if tree.is_open(found):
            yield found


def _ends(node: tree.Node) -> set[float]:
    """The absolute values at which `node` may be 0: quotients of its numbers, and the roots of these by its powers.

    A linear `3x + 20` is 0 at a quotient, `x^2 - 20` at a root of one.
    """
    numbers = {1.0, *_numbers(node)}
    degrees = {1, *(degree for part in tree.walk(node) if (degree := _degree(part)))}
    ends = {(a / b) ** (1 / degree) for a in numbers for b in numbers for degree in degrees}
    return {end for end in ends if 0 < end < math.inf}


def _degree(node: tree.Node) -> int:
    if not isinstance(node, tree.Power) or not isinstance(node.exponent, tree.Number):
        return 0
    degree = node.exponent.value
    return degree.numerator if degree.denominator == 1 and 1 < degree <= _MAX_DEGREE else 0


def _numbers(node: tree.Node) -> Iterator[float]:
    """The absolute values of the addends and factors without letters; not of exponents."""
    parts = (node.base,) if isinstance(node, tree.Power) else tree.children(node)
    closed = tuple(part for part in parts if not tree.is_open(part))
    if isinstance(node, tree.Sum | tree.Product) and closed:
        closed = (tree.rebuilt(node, closed),)
    for part in (*closed, *(() if tree.is_open(node) else (node,))):
        value = rational(part)
        number = abs(approximate(part) if value is None else float(value))
        if 0 < number < math.inf:
            yield number
    for part in parts:
        if tree.is_open(part):
            yield from _numbers(part)
