r"""A static bound on the size of an expression, so that those too large to evaluate are refused beforehand.

`9^{9^9}`, `(10^8)!`, `\sum_{k=1}^{10^8} k` and `e^{e^{e^{10}}}` are small trees with large values. The bound is
found by one walk over the tree that builds no number of more than 10,000 bits.
"""

import math

from math_answers import expression as tree
from math_answers.exact import MAX_MATRIX, rational, series_length

MAX_BITS = 10_000
"""Bits of any value that occurs on the way, about 3,000 decimal digits."""
MAX_TERMS = 1000
"""Terms of one sum or product over an index."""
MAX_FACTORIAL = 1000
MAX_GAMMA = 60
"""Largest argument of a factorial that is not a fraction: the gamma function is evaluated to many digits."""
MAX_BINOMIAL = 2000
_SYMBOL_BITS = 2.0
"""Symbols are evaluated between a quarter and four."""


def check_size(node: tree.Node) -> float:
    """The number of bits that the values in `node` stay below; raises TooLargeError beyond 10,000.

    A term of a series counts two bits at least, so the bound holds the work of nested series too.
    """
    return _Bounds({}).bits(node)


class _Bounds:
    """Bounds for the nodes of one expression, each found once: the bound of a power asks for its exponent twice."""

    def __init__(self, indices: dict[str, float]):
        self._indices = indices
        """Bits of the letters that a series binds."""
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
            case tree.Symbol(name):
                return self._indices.get(name, _SYMBOL_BITS)
            case tree.Constant():
                return 3.0
            case tree.Sum(parts) | tree.Product(parts):
                return 1.0 + sum(map(self.bits, parts))
            case tree.Power(base, exponent):
                return 1.0 + self.largest(exponent) * self.bits(base)
            case tree.Call(name, arguments):
                return self._call_bits(name, arguments)
            case tree.Series(_, index, first, last, body):
                return self._series_bits(index, first, last, body)
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
            case tree.Symbol(name):
                return 2.0 ** min(self._indices.get(name, _SYMBOL_BITS), 64.0)
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
            case "sinh" | "cosh":
                return 1.5 * self.largest(arguments[0]) + 8
            case "det":
                return 64 * inside
            case _:
                return inside + 8

    def _series_bits(self, index: str, first: tree.Node, last: tree.Node, body: tree.Node) -> float:
        ends = max(self.bits(first), self.bits(last)) + 8
        count = series_length(first, last)
        if count is None:
            return _SYMBOL_BITS  # symbolic bounds: never evaluated, only compared by form
        if count > MAX_TERMS:
            raise tree.TooLargeError(f"a sum of more than {MAX_TERMS} terms")
        return 1.0 + count * _Bounds({**self._indices, index: ends}).bits(body)


def work(node: tree.Node) -> float:
    """An estimate of the steps that the exact arithmetic on `node` takes, found without doing any of it."""
    steps, side = _steps(node)
    return steps * float(min(max(1, side), MAX_MATRIX) ** 2)


def _steps(node: tree.Node) -> tuple[float, int]:
    """Steps for one entry after the matrices in `node` are multiplied out, and the larger side of the matrix (or 0)."""
    match node:
        case tree.Number(value, _):
            return 1.0 + (value.numerator.bit_length() + value.denominator.bit_length()) / 64, 0
        case tree.Matrix(rows):
            return max([_steps(entry)[0] for entry in tree.children(node)]), max(len(rows), len(rows[0]))
        case tree.Product(factors):
            return _product_steps([_steps(factor) for factor in factors])
        case tree.Power(base, tree.Number(exponent, _)):
            inside, side = _steps(base)
            if side:
                return _product_steps([(inside, side)] * min(4, abs(exponent.numerator)))
            return inside + 1.0 + min(abs(exponent.numerator) + exponent.denominator, MAX_BITS) / 16, 0
        case tree.Call("det", (matrix,)):
            return 24 * work(matrix), 0
        case tree.Call("factorial" | "binomial", arguments):
            return 100.0 + sum(map(work, arguments)), 0
        case tree.Series(_, _, first, last, body):
            count = float(MAX_TERMS)
            if isinstance(first, tree.Number) and isinstance(last, tree.Number):
                distance = abs(last.value - first.value)
                count = float(distance) + 1 if distance < MAX_TERMS else count
            return work(first) + work(last) + count * work(body), 0
        case tree.PlusMinus(value):
            return 2 * work(value), 0
        case _:
            parts = [_steps(part) for part in tree.children(node)]
            return 1.0 + sum(inside for inside, _ in parts), max((side for _, side in parts), default=0)


def _product_steps(factors: list[tuple[float, int]]) -> tuple[float, int]:
    """The entries of a product of matrices grow by the length of a row with each factor."""
    steps, side = 1.0, 0
    for inside, factor_side in factors:
        steps = factor_side * (steps + inside + 1) if factor_side and side else steps + inside
        side = max(side, factor_side)
    return steps, side


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


def has_double(node: tree.Node) -> bool:
    return any(isinstance(part, tree.Number) and part.double for part in tree.walk(node))
