"""The tree of a scalar expression, and its canonical form.

Nodes are plain data: building one evaluates nothing, so `9^{9^9}` is three numbers and two powers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal


class TooLargeError(ValueError):
    """Evaluating the expression would take unbounded time or memory."""


@dataclass(frozen=True, slots=True)
class Number:
    value: Fraction
    error: Fraction = Fraction(0)
    """Relative error of a printed number (`quantity.printed_error`); 0: exact."""


@dataclass(frozen=True, slots=True)
class Symbol:
    name: str
    """Letter or Greek name, with its subscript: `x`, `alpha`, `F_n-1`."""


@dataclass(frozen=True, slots=True)
class Constant:
    name: Literal["pi", "e", "i", "oo"]


@dataclass(frozen=True, slots=True)
class Sum:
    terms: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Product:
    factors: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Power:
    base: "Node"
    exponent: "Node"


@dataclass(frozen=True, slots=True)
class Call:
    """A function applied: a known one (`sin`, `binomial`, ...) or, with a name of one letter, an unknown one (`f`)."""

    name: str
    arguments: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Series:
    r"""`\sum` or `\prod` over an integer index, both bounds included."""

    kind: Literal["sum", "product"]
    index: str
    first: "Node"
    last: "Node"
    body: "Node"


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: "tuple[tuple[Node, ...], ...]"
    """All of one length."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """`x^\\circ`: a hundred-and-eightieth of pi inside a trigonometric function, a unit outside."""

    value: "Node"


@dataclass(frozen=True, slots=True)
class PlusMinus:
    r"""`\pm x` (sign 1) or `\mp x` (sign -1): two values; all signs of an expression are chosen together."""

    value: "Node"
    sign: Literal[1, -1]


Node = Number | Symbol | Constant | Sum | Product | Power | Call | Series | Matrix | Degrees | PlusMinus

MINUS_ONE = Number(Fraction(-1))
ONE = Number(Fraction(1))


def negative(node: Node) -> Node:
    return Number(-node.value, node.error) if isinstance(node, Number) else Product((MINUS_ONE, node))


def quotient(numerator: Node, denominator: Node) -> Node:
    return Product((numerator, Power(denominator, MINUS_ONE)))


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Sum(terms):
            return terms
        case Product(factors):
            return factors
        case Power(base, exponent):
            return base, exponent
        case Call(_, arguments):
            return arguments
        case Series(_, _, first, last, body):
            return first, last, body
        case Matrix(rows):
            return tuple(entry for row in rows for entry in row)
        case Degrees(value) | PlusMinus(value, _):
            return (value,)
        case _:
            return ()


def rebuilt(node: Node, parts: tuple[Node, ...]) -> Node:
    """`node` with `parts` in place of its children."""
    match node:
        case Sum():
            return Sum(parts)
        case Product():
            return Product(parts)
        case Power():
            return Power(*parts)
        case Call(name, _):
            return Call(name, parts)
        case Series(kind, index, _, _, _):
            return Series(kind, index, *parts)
        case Matrix(rows):
            width = len(rows[0])
            return Matrix(tuple(parts[i : i + width] for i in range(0, len(parts), width)))
        case Degrees():
            return Degrees(parts[0])
        case PlusMinus(_, sign):
            return PlusMinus(parts[0], sign)
        case _:
            return node


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def symbols(node: Node) -> set[str]:
    return {part.name for part in walk(node) if isinstance(part, Symbol)}


def is_unknown(node: Node) -> bool:
    """A series, or a function by one letter: no letter itself, but its value is no more known than that of one."""
    return isinstance(node, Series) or (isinstance(node, Call) and len(node.name.rstrip("'")) == 1)


def is_open(node: Node) -> bool:
    """True if the value depends on what letters stand for."""
    return any(isinstance(part, Symbol) or is_unknown(part) for part in walk(node))


def depth(node: Node) -> int:
    """Nodes from the root to the deepest leaf, both included; found without recursion."""
    deepest, stack = 0, [(node, 1)]
    while stack:
        node, level = stack.pop()
        deepest = max(deepest, level)
        stack += [(part, level + 1) for part in children(node)]
    return deepest


@lru_cache(maxsize=8192)
def canonical(node: Node) -> Node:
    """The same expression with nested sums and products flattened and their parts in a fixed order.

    Rearranged expressions get the same form. Nothing is computed: `x + x` and `2x` differ.

    >>> x, y = Symbol("x"), Symbol("y")
    >>> canonical(Sum((x, Sum((y, x))))) == canonical(Sum((y, x, x)))
    True
    """
    return _canonical(node)


def _canonical(node: Node) -> Node:
    node = rebuilt(node, tuple(_canonical(part) for part in children(node)))
    match node:
        case Sum(terms):
            flat = [t for term in terms for t in (term.terms if isinstance(term, Sum) else (term,))]
            return Sum(tuple(sorted(flat, key=repr))) if len(flat) > 1 else flat[0]
        case Product(factors):
            flat = [f for factor in factors for f in (factor.factors if isinstance(factor, Product) else (factor,))]
            flat = [f for f in flat if f != ONE] or [ONE]
            if any(isinstance(f, Matrix) for f in flat):
                return Product(tuple(flat))
            return Product(tuple(sorted(flat, key=repr))) if len(flat) > 1 else flat[0]
        case _:
            return node
