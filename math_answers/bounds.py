r"""A static bound on the size of an expression, so that those too large to evaluate are refused beforehand.

`9^{9^9}`, `(10^8)!` and `e^{e^{e^{10}}}` are small trees with large values. The bound is found by one walk over the
tree that builds no number of more than 10,000 bits.
"""

import math
from fractions import Fraction

from math_answers import expression as tree
from math_answers.exact import rational

ZERO = Fraction(0)
MAX_BITS = 10_000
"""Bits of any value that occurs on the way, about 3,000 decimal digits."""
MAX_FACTORIAL = 1000
MAX_GAMMA = 60
"""Largest argument of a factorial that is not a fraction: the gamma function is evaluated to many digits."""
MAX_BINOMIAL = 2000
SYMBOL_BITS = 2.0
"""Symbols are evaluated between a quarter and four."""


def check_size(node: tree.Node, symbol_bits: float = SYMBOL_BITS) -> float:
    """The number of bits that the values in `node` stay below; raises TooLargeError beyond 10,000.

    symbol_bits: bound on |log2| of the values of the letters.
    """
    return _Bounds(symbol_bits).bits(node)


class _Bounds:
    """Bounds for the nodes of one expression, each found once: the bound of a power asks for its exponent twice."""

    def __init__(self, symbol_bits: float) -> None:
        self._symbol_bits = symbol_bits
        self._bits: dict[int, float] = {}
        self._largest: dict[int, float] = {}

    def bits(self, node: tree.Node) -> float:
        """Bound on log2 of value and of 1 / value, and on the bits of an exact fraction."""
        if id(node) not in self._bits:
            bits = self._find_bits(node)
            if not bits <= MAX_BITS:  # nan is too large as well
                raise tree.TooLargeError(f"a value of more than {MAX_BITS} bits")
            self._bits[id(node)] = bits
        return self._bits[id(node)]

    def largest(self, node: tree.Node) -> float:
        """Upper bound on the absolute value."""
        if id(node) not in self._largest:
            self._largest[id(node)] = self._find_largest(node)
        return self._largest[id(node)]

    def _find_bits(self, node: tree.Node) -> float:
        match node:
            case tree.Number(value, _):
                return float(max(value.numerator.bit_length(), value.denominator.bit_length()))
            case tree.Symbol() | tree.Series():  # a series is compared as it is written, like a letter
                return self._symbol_bits
            case tree.Constant():
                return 3.0
            case tree.Sum(parts) | tree.Product(parts):
                return 1.0 + sum(map(self.bits, parts))
            case tree.Power(base, exponent):
                return 1.0 + self.largest(exponent) * self.bits(base)
            case tree.Call(name, arguments):
                return self._call_bits(name, arguments)
            case tree.Matrix():
                return max(map(self.bits, tree.children(node)))
            case _:
                return 8.0 + sum(map(self.bits, tree.children(node)))

    def _find_largest(self, node: tree.Node) -> float:
        bits = self.bits(node)
        value = rational(node)  # below 10,000 bits, since the line above did not raise
        if value is not None:
            return float(math.ceil(abs(value))) if abs(value) < 2**64 else math.inf
        match node:
            case tree.Product(parts):
                return math.prod(map(self.largest, parts))
            case tree.Sum(parts):
                return sum(map(self.largest, parts))
            case tree.Degrees(inner):
                return self.largest(inner) / 57
            case tree.Power(base, tree.Number(exponent, _)) if 0 < exponent <= 1:
                return max(1.0, self.largest(base))
            case tree.Call("ln" | "log", (argument,)):
                return 1.0 + self.bits(argument)
            case tree.Call("sin" | "cos" | "tanh" | "arcsin" | "arccos" | "arctan", _):
                return 4.0
            case _:
                return 2.0 ** min(bits, 64.0)

    def _call_bits(self, name: str, arguments: tuple[tree.Node, ...]) -> float:
        inside = sum(map(self.bits, arguments))
        match name:
            case "factorial":
                largest = self.largest(arguments[0])
                if largest > (MAX_FACTORIAL if rational(arguments[0]) is not None else MAX_GAMMA):
                    raise tree.TooLargeError("the factorial of a large number")
                return largest * max(1.0, math.log2(largest + 1)) + 8
            case "binomial":
                largest = max(map(self.largest, arguments))
                if largest > MAX_BINOMIAL:
                    raise tree.TooLargeError(f"a binomial of more than {MAX_BINOMIAL}")
                return 2 * largest + 8
            case "sinh" | "cosh" | "sech" | "csch":
                return 1.5 * self.largest(arguments[0]) + 8
            case "tanh" | "coth":  # differ from 1 by about e^{-2x}
                return 3.0 * self.largest(arguments[0]) + 8
            case _:
                return inside + 8


def work(node: tree.Node) -> float:
    """An estimate of the steps that the exact arithmetic on `node` takes, found without doing any of it."""
    return _steps(node)[0]


def _steps(node: tree.Node) -> tuple[float, int]:
    """The steps, and the entries of the largest matrix (1 without any)."""
    parts = [_steps(part) for part in tree.children(node)]
    steps, entries = 1.0 + sum(steps for steps, _ in parts), max((entries for _, entries in parts), default=1)
    match node:
        case tree.Number(value, _):
            return steps + (value.numerator.bit_length() + value.denominator.bit_length()) / 64, 1
        case tree.Matrix():
            return steps, max(entries, len(parts))
        case tree.Product():
            return steps * entries, entries  # every entry is multiplied by the other factors
        case tree.Power(_, tree.Number(exponent, _)):
            return steps + min(abs(exponent.numerator) + exponent.denominator, MAX_BITS) / 16, entries
        case tree.Call("factorial" | "binomial", _):
            return steps + 100.0, entries
        case tree.PlusMinus():
            return 2 * steps, entries
        case _:
            return steps, entries


def expansion_terms(node: tree.Node) -> float:
    """Bound on the number of monomials when products and powers are multiplied out."""
    match node:
        case tree.Sum(terms):
            return sum(expansion_terms(term) for term in terms)
        case tree.Product(factors):
            return math.prod(expansion_terms(factor) for factor in factors)
        case tree.Power(base, tree.Number(exponent, _)) if exponent.denominator == 1:
            width, power = expansion_terms(base), abs(exponent.numerator)
            if width <= 1:
                return 1.0
            return float(math.comb(int(min(width, 50)) + power - 1, power)) if power <= 50 else math.inf
        case _:
            return 1.0


def printed_error(*nodes: tree.Node) -> Fraction:
    """The largest relative error of the numbers in expressions; 0: all are exact."""
    return max(
        (part.error for node in nodes for part in tree.walk(node) if isinstance(part, tree.Number)), default=ZERO
    )
