r"""Subsets of the real line as sorted pieces: `(-\infty,0) \cup (0,\infty)` and `x \ne 0` are one."""

import math
from dataclasses import dataclass

from math_answers.equations import is_name
from math_answers.exact import approximate
from math_answers.expression import Constant, Node, Product, negative
from math_answers.structure import Answer, Combined, Reals, Relation, Scalar, Several

PLUS_INFINITY = Constant("oo")
MINUS_INFINITY = negative(PLUS_INFINITY)
_SAME_POINT = 1e-12


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval, or with equal closed ends a point."""

    low: Node
    high: Node
    low_closed: bool
    high_closed: bool


def is_inequality(answer: Answer) -> bool:
    return isinstance(answer, Relation) and set(answer.signs) <= {"<", ">", "le", "ge", "ne"}


def real_set(answer: Answer) -> list[Piece] | None:
    """The pieces in increasing order, touching ones joined; None if the answer is not such a set."""
    pieces = _pieces(answer)
    return None if pieces is None else _joined(pieces)


def _pieces(answer: Answer) -> list[Piece] | None:
    match answer:
        case Reals():
            return [Piece(MINUS_INFINITY, PLUS_INFINITY, False, False)]
        case Several(items, "{}"):
            points = [item.node for item in items if isinstance(item, Scalar)]
            return [Piece(point, point, True, True) for point in points] if len(points) == len(items) else None
        case Several((Scalar() as low, Scalar() as high), brackets) if brackets in ("()", "[]", "(]", "[)"):
            return [Piece(low.node, high.node, brackets[0] == "[", brackets[1] == "]")]
        case Several(items, "") if all(is_inequality(item) for item in items):
            return _union(items)
        case Combined("cup", parts):
            return _union(parts)
        case Combined("cap", parts):
            return _intersection(parts)
        case Combined("setminus", (whole, removed)):
            outer, taken = real_set(whole), real_set(removed)
            return None if outer is None or taken is None else _without(outer, taken)
        case Relation():
            return _solutions(answer)
        case _:
            return None


def _union(parts: tuple[Answer, ...]) -> list[Piece] | None:
    pieces: list[Piece] = []
    for part in parts:
        found = _pieces(part)
        if found is None:
            return None
        pieces += found
    return pieces


def _intersection(parts: tuple[Answer, ...]) -> list[Piece] | None:
    """`x > 1 and x < 2`. Two sets with nothing in common were meant as two solutions: `x < 1 and x > 2`."""
    found = [_pieces(part) for part in parts]
    if any(pieces is None or len(pieces) != 1 for pieces in found):
        return None
    pieces = [pieces[0] for pieces in found if pieces]
    if any(math.isnan(_position(end)) for piece in pieces for end in (piece.low, piece.high)):
        return None
    last = max(pieces, key=lambda piece: (_position(piece.low), not piece.low_closed))
    first = min(pieces, key=lambda piece: (_position(piece.high), piece.high_closed))
    if _position(last.low) > _position(first.high):
        return pieces
    return [Piece(last.low, first.high, last.low_closed, first.high_closed)]


def _solutions(relation: Relation) -> list[Piece] | None:
    """`x < 3`, `1 <= x < 2`, `x \\ne 1`: one side is a name, the others are numbers."""
    if not all(isinstance(side, Scalar) for side in relation.sides):
        return None
    names = [is_name(side) for side in relation.sides]
    nodes = [side.node for side in relation.sides if isinstance(side, Scalar)]
    signs = relation.signs
    if set(signs) <= {">", "ge"}:
        nodes, names = nodes[::-1], names[::-1]
        signs = tuple({">": "<", "ge": "le"}[sign] for sign in reversed(signs))
    if signs == ("ne",) and names[0]:
        whole = [Piece(MINUS_INFINITY, PLUS_INFINITY, False, False)]
        return _without(whole, [Piece(nodes[1], nodes[1], True, True)])
    if not set(signs) <= {"<", "le"}:
        return None
    match names:
        case [True, False]:
            return [Piece(MINUS_INFINITY, nodes[1], False, signs[0] == "le")]
        case [False, True]:
            return [Piece(nodes[0], PLUS_INFINITY, signs[0] == "le", False)]
        case [False, True, False]:
            return [Piece(nodes[0], nodes[2], signs[0] == "le", signs[1] == "le")]
        case _:
            return None


def _position(node: Node) -> float:
    """Position of a boundary; nan if that is not known."""
    if node == PLUS_INFINITY:
        return math.inf
    if isinstance(node, Product) and PLUS_INFINITY in node.factors:
        rest = [approximate(factor) for factor in node.factors if factor != PLUS_INFINITY]
        return math.inf if math.prod(rest) > 0 else -math.inf
    return approximate(node)


def _joined(pieces: list[Piece]) -> list[Piece] | None:
    if len(pieces) < 2:
        return pieces
    if any(math.isnan(_position(end)) for piece in pieces for end in (piece.low, piece.high)):
        return None
    pieces = sorted(pieces, key=lambda piece: (_position(piece.low), not piece.low_closed))
    joined = [pieces[0]]
    for piece in pieces[1:]:
        last = joined[-1]
        gap = _position(piece.low) - _position(last.high)
        touching = abs(gap) <= _SAME_POINT * max(1.0, abs(_position(last.high))) and (
            piece.low_closed or last.high_closed
        )
        if gap < -_SAME_POINT or touching:
            longer = piece if _position(piece.high) > _position(last.high) else last
            closed = longer.high_closed or (piece.high == last.high and piece.high_closed)
            joined[-1] = Piece(last.low, longer.high, last.low_closed, closed)
        else:
            joined.append(piece)
    return joined


def _without(outer: list[Piece], removed: list[Piece]) -> list[Piece] | None:
    """`outer` without single points."""
    if any(piece.low != piece.high for piece in removed):
        return None
    for point in removed:
        where = _position(point.low)
        if math.isnan(where):
            return None
        pieces: list[Piece] = []
        for piece in outer:
            low, high = _position(piece.low), _position(piece.high)
            if math.isnan(low) or math.isnan(high):
                return None
            if low < where < high:
                pieces.append(Piece(piece.low, point.low, piece.low_closed, False))
                pieces.append(Piece(point.low, piece.high, False, piece.high_closed))
            elif low == where == high:
                continue
            else:
                low_closed = piece.low_closed and low != where
                pieces.append(Piece(piece.low, piece.high, low_closed, piece.high_closed and high != where))
        outer = pieces
    return outer
