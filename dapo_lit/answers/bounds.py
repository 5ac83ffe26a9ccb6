r"""A static bound on the size of an expression, so that hopeless ones are refused before anything evaluates them.

`9^{9^9}`, `(10^8)!`, `\sum_{k=1}^{10^8} k` and `e^{e^{e^{10}}}` are small trees with large values. The bound is
found by one walk over the tree that builds no number of more than 10,000 bits.
"""

import math

from dapo_lit.answers.exact import rational, series_length
from dapo_lit.answers.expression import (
    Call,
    Constant,
    Degrees,
    Matrix,
    Node,
    Number,
    Power,
    Product,
    Series,
    Sum,
    Symbol,
    TooLargeError,
    children,
    walk,
)

MAX_BITS = 10_000
"""Bits of any value that occurs on the way, about 3,000 decimal digits."""
MAX_TERMS = 1000
"""Terms of one sum or product over an index."""
MAX_FACTORIAL = 1000
MAX_GAMMA = 60
"""Of an argument that is no fraction, so that the gamma function has to be evaluated to many digits."""
MAX_BINOMIAL = 2000
_SYMBOL_BITS = 2.0
"""Symbols are evaluated between a quarter and four."""


def check_size(node: Node) -> float:
    """The number of bits that the values in `node` stay below; raises TooLargeError beyond 10,000.

    A term of a series counts two bits at least, so the bound holds the work of nested series too.
    """
    return _bits(node, {})


def _bits(node: Node, indices: dict[str, float]) -> float:
    """Bound on log2 of value and of 1 / value, and on the bits of an exact fraction."""
    match node:
        case Number(value, _):
            bits = float(max(value.numerator.bit_length(), value.denominator.bit_length()))
        case Symbol(name):
            bits = indices.get(name, _SYMBOL_BITS)
        case Constant():
            bits = 3.0
        case Sum(parts) | Product(parts):
            bits = 1.0 + sum(_bits(part, indices) for part in parts)
        case Power(base, exponent):
            bits = 1.0 + _largest(exponent, indices) * _bits(base, indices)
        case Call(name, arguments):
            bits = _call_bits(name, arguments, indices)
        case Series(_, index, first, last, body):
            bits = _series_bits(index, first, last, body, indices)
        case Matrix(rows):
            bits = max(_bits(entry, indices) for row in rows for entry in row)
        case _:
            bits = 8.0 + sum(_bits(part, indices) for part in children(node))
    if bits > MAX_BITS:
        raise TooLargeError(f"a value of more than {MAX_BITS} bits")
    return bits


def _largest(node: Node, indices: dict[str, float]) -> float:
    """Upper bound on the absolute value."""
    bits = _bits(node, indices)
    value = rational(node)  # below 10,000 bits, since the line above did not raise
    if value is not None:
        return float(math.ceil(abs(value))) if abs(value) < 2**64 else math.inf
    match node:
        case Product(parts):
            return math.prod(_largest(part, indices) for part in parts)
        case Sum(parts):
            return sum(_largest(part, indices) for part in parts)
        case Symbol(name):
            return 2.0 ** indices.get(name, _SYMBOL_BITS)
        case Degrees(inner):
            return _largest(inner, indices) / 57
        case Power(base, Number(exponent, _)) if 0 < exponent <= 1:
            return max(1.0, _largest(base, indices))
        case Call("ln" | "log", (argument,)):
            return 1.0 + _bits(argument, indices)
        case Call("sin" | "cos" | "tanh" | "arcsin" | "arccos" | "arctan", _):
            return 4.0
        case _:
            return 2.0 ** min(bits, 64.0)


def _call_bits(name: str, arguments: tuple[Node, ...], indices: dict[str, float]) -> float:
    inside = sum(_bits(argument, indices) for argument in arguments)
    match name:
        case "factorial":
            largest = _largest(arguments[0], indices)
            if largest > (MAX_FACTORIAL if rational(arguments[0]) is not None else MAX_GAMMA):
                raise TooLargeError("the factorial of a large number")
            return largest * max(1.0, math.log2(largest + 1)) + 8
        case "binomial":
            largest = max(_largest(argument, indices) for argument in arguments)
            if largest > MAX_BINOMIAL:
                raise TooLargeError(f"a binomial of more than {MAX_BINOMIAL}")
            return 2 * largest + 8
        case "sinh" | "cosh":
            return 1.5 * _largest(arguments[0], indices) + 8
        case "det":
            return 64 * inside
        case _:
            return inside + 8


def _series_bits(index: str, first: Node, last: Node, body: Node, indices: dict[str, float]) -> float:
    ends = max(_bits(first, indices), _bits(last, indices)) + 8
    count = series_length(first, last)
    if count is None:
        # Symbolic bounds: never evaluated, compared by form alone.
        return _SYMBOL_BITS
    if count > MAX_TERMS:
        raise TooLargeError(f"a sum of more than {MAX_TERMS} terms")
    return 1.0 + count * _bits(body, {**indices, index: ends})


def expansion_terms(node: Node) -> float:
    """Bound on the number of monomials when products and powers are multiplied out."""
    match node:
        case Sum(terms):
            return sum(expansion_terms(term) for term in terms)
        case Product(factors):
            return math.prod(expansion_terms(factor) for factor in factors)
        case Power(base, Number(exponent, _)) if exponent.denominator == 1:
            width, power = expansion_terms(base), abs(exponent.numerator)
            if width <= 1:
                return 1.0
            return float(math.comb(int(min(width, 50)) + power - 1, power)) if power <= 50 else math.inf
        case _:
            return 1.0


def has_double(node: Node) -> bool:
    return any(isinstance(part, Number) and part.double for part in walk(node))
