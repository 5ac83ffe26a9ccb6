r"""Subsets of the real line as sorted pieces: `(-\infty,0) \cup (0,\infty)`, `x \ne 0` and `\mathbb{R} \setminus \{0\}`
are one.
"""

import math
from dataclasses import dataclass

from math_answers.equations import is_name
from math_answers.exact import approximate
from math_answers.expression import Constant, Node, Product, canonical, negative
from math_answers.structure import Answer, Combined, Reals, Relation, Scalar, Several, parts_of

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


_WHOLE_LINE = Piece(MINUS_INFINITY, PLUS_INFINITY, False, False)


def is_inequality(answer: Answer) -> bool:
    """`x < 3`, `1 < x <= 2`, `x \\ne 5`, `x \\notin (1, 2)`"""
    if not isinstance(answer, Relation):
        return False
    if answer.signs == ("notin",):
        return isinstance(answer.sides[1], Several | Combined | Reals)
    return set(answer.signs) <= {"<", ">", "le", "ge", "ne"}


def quantities(answer: Answer) -> set[Node]:
    """The quantities that the relations of a set are about: `x` for `x < 1 or x > 2`."""
    if isinstance(answer, Relation):
        return {canonical(side.node) for side in answer.sides if isinstance(side, Scalar) and is_name(side)}
    return set().union(*map(quantities, parts_of(answer)))


def real_set(answer: Answer) -> list[Piece] | None:
    """The pieces in increasing order, touching ones joined; None if the answer is not such a set."""
    pieces = _pieces(answer)
    return None if pieces is None or len(quantities(answer)) > 1 else _joined(pieces)


def _pieces(answer: Answer) -> list[Piece] | None:
    match answer:
        case Reals():
            return [_WHOLE_LINE]
        case Several(items, "{}"):
            points = [item.node for item in items if isinstance(item, Scalar)]
            return [Piece(point, point, True, True) for point in points] if len(points) == len(items) else None
        case Several((Scalar() as low, Scalar() as high), brackets) if brackets in ("()", "[]", "(]", "[)"):
            return [Piece(low.node, high.node, brackets[0] == "[", brackets[1] == "]")]
        case Several(items, "") if all(is_inequality(item) for item in items):
            return _listed(items)
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


def _listed(items: tuple[Answer, ...]) -> list[Piece] | None:
    """`x > 1, x < 2` is `x > 1 and x < 2`, and what `x \\ne 5` rules out is ruled out of the whole."""
    exclusions = [item for item in items if isinstance(item, Relation) and set(item.signs) & {"ne", "notin"}]
    others = tuple(item for item in items if item not in exclusions)
    whole = _intersection(others)
    return _common([None if whole is None else _joined(whole), *map(real_set, exclusions)])


def _union(parts: tuple[Answer, ...]) -> list[Piece] | None:
    pieces: list[Piece] = []
    for part in parts:
        found = _pieces(part)
        if found is None:
            return None
        pieces += found
    return pieces


def _intersection(parts: tuple[Answer, ...]) -> list[Piece] | None:
    """`x > 1 and x < 2`. Bounds with nothing in common were meant as two solutions, `x < 1 and x > 2`, and never as all
    real numbers.
    """
    common = _common([real_set(part) for part in parts])
    if common != [] or not all(is_inequality(part) for part in parts):
        return common
    union = _union(parts)
    return None if union is None or _joined(union) == [_WHOLE_LINE] else union


def _common(sets: list[list[Piece] | None]) -> list[Piece] | None:
    """What is in all sets."""
    common: list[Piece] | None = [_WHOLE_LINE]
    for pieces in sets:
        outside = None if pieces is None else _complement(pieces)
        common = None if common is None or outside is None else _without(common, outside)
    return common


def _solutions(relation: Relation) -> list[Piece] | None:
    """`x < 3`, `1 <= x < 2`, `x \\ne 1`: one side is a name, the others are numbers."""
    if relation.signs == ("notin",) and is_name(relation.sides[0]):
        members = real_set(relation.sides[1])
        return None if members is None else _complement(members)
    if not all(isinstance(side, Scalar) for side in relation.sides):
        return None
    names = [is_name(side) for side in relation.sides]
    nodes = [side.node for side in relation.sides if isinstance(side, Scalar)]
    signs = relation.signs
    if set(signs) <= {">", "ge"}:
        nodes, names = nodes[::-1], names[::-1]
        signs = tuple({">": "<", "ge": "le"}[sign] for sign in reversed(signs))
    if signs == ("ne",) and names == [True, False]:
        return _without([_WHOLE_LINE], [Piece(nodes[1], nodes[1], True, True)])
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


def _complement(pieces: list[Piece]) -> list[Piece] | None:
    """The gaps between sorted pieces that do not touch; None if a boundary is not a number or a piece is empty."""
    gaps: list[Piece] = []
    low, closed, where = MINUS_INFINITY, False, -math.inf
    for piece in pieces:
        start, end = _position(piece.low), _position(piece.high)
        if math.isnan(start) or not start <= end or (len(pieces) > 1 and start < where):
            return None
        if start > where or (start == where and closed and not piece.low_closed):
            gaps.append(Piece(low, piece.low, closed, not piece.low_closed))
        low, closed, where = piece.high, not piece.high_closed, end
    if where < math.inf:
        gaps.append(Piece(low, PLUS_INFINITY, closed, False))
    return gaps


def _without(outer: list[Piece], removed: list[Piece]) -> list[Piece] | None:
    """What is in `outer` and not in `removed`: the complement of everything outside either."""
    outside = _complement(outer)
    excluded = None if outside is None else _joined([*outside, *removed])
    return None if excluded is None else _complement(excluded)
