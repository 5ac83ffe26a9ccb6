r"""True if two structured answers are the same answer: the rules of `docs/rewards.md`.

A `Comparer` compares scalars and returns None where only the symbolic comparison decides. Structures combine these
three values: a list with one wrong item is wrong, whatever the undecided ones are.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Protocol

from math_answers import expression as tree
from math_answers.bounds import check_size, work
from math_answers.equations import expanded, is_consistent, is_equation, is_name, unnamed, without_approximation
from math_answers.exact import matrices_combined, rational, without_degrees
from math_answers.parse import parse_answer
from math_answers.sets import is_inequality, quantities, real_set
from math_answers.structure import (
    Answer,
    Chosen,
    Combined,
    Range,
    Ratio,
    Raw,
    Reals,
    Relation,
    Scalar,
    Several,
    Words,
    parts_of,
    words_of,
)
from math_answers.units import units_agree
from math_answers.verdicts import all_of, any_of, matched

_FLIPPED = {"<": ">", ">": "<", "le": "ge", "ge": "le", "=": "=", "ne": "ne"}
_HUNDREDTH = tree.Number(Fraction(1, 100))
_DEGREE = tree.Product((tree.Constant("pi"), tree.Number(Fraction(1, 180))))


_COMMA_DECIMAL = re.compile(r"-?[0-9]+,(?:[0-9]{1,2}|[0-9]{4,})")
_POINT_DECIMAL = re.compile(r"-?[0-9]+\.[0-9]+")


class Comparer(Protocol):
    """Compares scalar expressions; None where it does not decide."""

    budget: float
    """Answers whose comparison takes more steps than this, as `bounds.work` estimates them, are left undecided."""

    def equal(self, a: tree.Node, b: tree.Node) -> bool | None:
        """True if a and b have the same value."""
        ...

    def ratio(self, a: tree.Node, b: tree.Node) -> int | None:
        """1 or -1 if a is a positive or a negative constant times b, 0 if it is not a constant times b."""
        ...


def compare_answers(prediction: str, answer: str, comparer: Comparer) -> bool | None:
    """True if a reading of `prediction` is the same answer as a reading of `answer`; None if it is undecided.

    An answer that is too large to evaluate, or whose matrices do not fit, is wrong: False.
    """
    if prediction.strip() == answer.strip():
        return bool(answer.strip())
    predictions, answers = parse_answer(prediction), parse_answer(answer)
    if _COMMA_DECIMAL.fullmatch(prediction.strip(" $")) and _POINT_DECIMAL.fullmatch(answer.strip(" $")):
        predictions = parse_answer(prediction.replace(",", "."))  # 3,5 is 3.5 where 3.5 is expected
    if steps(predictions, answers) > comparer.budget:
        return None
    return any_of(_same_or_too_large(a, b, comparer) for a in predictions for b in answers)


def steps(predictions: tuple[Answer, ...], answers: tuple[Answer, ...]) -> float:
    """An upper estimate of the steps that the comparison takes: every scalar of one side against each of the other."""
    a, b = ([work(scalar.node) for reading in side for scalar in _scalars(reading)] for side in (predictions, answers))
    return sum(a) * len(b) + sum(b) * len(a) + sum(a) + sum(b)


def _scalars(answer: Answer) -> Iterator[Scalar]:
    if isinstance(answer, Scalar):
        yield answer
    for part in parts_of(answer):
        yield from _scalars(part)


def _same_or_too_large(a: Answer, b: Answer, comparer: Comparer) -> bool | None:
    try:
        return same(a, b, comparer)
    except ValueError:  # TooLargeError, or matrices whose shapes do not fit
        return False


def same(prediction: Answer, reference: Answer, comparer: Comparer) -> bool | None:
    """True if `prediction` is the answer `reference`. Not symmetric: only a prediction may be `x = 5` for `5`."""
    if prediction == reference:
        return prediction != Raw("")
    if isinstance(prediction, Chosen) or isinstance(reference, Chosen):
        return _same_choice(prediction, reference, comparer)
    consistent = all_of(is_consistent(answer, _same_values(comparer)) for answer in (prediction, reference))
    if not consistent:
        return consistent
    prediction, reference = (expanded(without_approximation(answer)) for answer in (prediction, reference))
    if prediction == reference:
        return True
    prediction, reference = unnamed(prediction, reference)
    sets = [_needs_sets(answer) for answer in (prediction, reference)]
    joined = isinstance(prediction, Combined | Reals) or isinstance(reference, Combined | Reals)
    alike = False if joined or sets[0] != sets[1] else _same_structure(prediction, reference, comparer)
    return _same_sets(prediction, reference, comparer) if alike is False and any(sets) else alike


def _same_structure(prediction: Answer, reference: Answer, comparer: Comparer) -> bool | None:
    """Two answers of one kind, part by part."""
    match prediction, reference:
        case (Scalar(), Scalar()):
            return _same_scalars(prediction, reference, comparer)
        case (Relation(), Relation()):
            return _same_relations(prediction, reference, comparer)
        case (Several(), Several()):
            return _same_several(prediction, reference, comparer)
        case (Several(items, brackets), Scalar()) | (Scalar(), Several(items, brackets)):
            scalar, first = (reference, True) if isinstance(reference, Scalar) else (prediction, False)
            assert isinstance(scalar, Scalar)
            return _same_vector(items, brackets, scalar, comparer, list_first=first)
        case (Ratio(a), Ratio(b)) | (Range(a), Range(b)):
            return _all_same(a, b, comparer)
        case (Ratio((Scalar() as a, Scalar() as b)), Scalar()):
            return _same_quotient(a, b, reference, comparer)
        case (Scalar(), Ratio((Scalar() as a, Scalar() as b))):
            return _same_quotient(a, b, prediction, comparer)
        case (Words(), _) | (_, Words()):
            return _words(prediction) is not None and _words(prediction) == _words(reference)
        case (Raw(_, a), Raw(_, b)):
            return bool(a) and a == b
        case _:
            return False


def _same_choice(prediction: Answer, reference: Answer, comparer: Comparer) -> bool | None:
    """`(B) 12` against `B`, against `12`, and letter and text against those of another choice."""
    match prediction, reference:
        case Chosen(a, a_readings), Chosen(b, b_readings):
            pairs = ((x, y) for x in a_readings for y in b_readings)
            return a == b and any_of(same(x, y, comparer) for x, y in pairs)
        case Chosen(letter, readings), _:
            return any_of(same(x, reference, comparer) for x in (Scalar(tree.Symbol(letter)), *readings))
        case _, Chosen(letter, readings):
            return any_of(same(prediction, x, comparer) for x in (Scalar(tree.Symbol(letter)), *readings))
        case _:
            return False


def _same_values(comparer: Comparer) -> Callable[[Scalar, Scalar], bool | None]:
    """For `is_consistent`: whether two sides of an equation have the same value."""

    def values_agree(a: Scalar, b: Scalar) -> bool | None:
        for side in (a, b):
            check_size(side.node)
        return _same_scalars(a, b, comparer)

    return values_agree


def _words(answer: Answer) -> Words | None:
    match answer:
        case Words():
            return answer
        case Scalar(_, _, _, word) if word:
            return words_of(word)
        case _:
            return None


def _needs_sets(answer: Answer) -> bool:
    if isinstance(answer, Several) and not answer.brackets and len(answer.items) > 1:
        return all(is_inequality(item) for item in answer.items)
    return isinstance(answer, Combined | Reals) or is_inequality(answer)


def _same_sets(prediction: Answer, reference: Answer, comparer: Comparer) -> bool | None:
    if isinstance(prediction, Combined) and isinstance(reference, Combined):
        alike: bool | None
        if prediction.operator != reference.operator:
            alike = False
        elif prediction.operator == "setminus":
            alike = _all_same(prediction.parts, reference.parts, comparer)
        else:
            alike = matched(prediction.parts, reference.parts, lambda a, b: same(a, b, comparer))
        if alike is not False:
            return alike
    if (
        not _units_agree(prediction, reference, converted=False)
        or len(quantities(prediction) | quantities(reference)) > 1
    ):
        return False
    a, b = real_set(prediction), real_set(reference)
    if a is None or b is None or len(a) != len(b):
        return False
    return all_of(
        all_of(
            [
                x.low_closed == y.low_closed and x.high_closed == y.high_closed,
                comparer.equal(x.low, y.low),
                comparer.equal(x.high, y.high),
            ]
        )
        for x, y in zip(a, b, strict=True)
    )


def _same_scalars(prediction: Scalar, reference: Scalar, comparer: Comparer) -> bool | None:
    if len(prediction.word) > 1 and len(reference.word) > 1 and _is_word(prediction.word, reference.word):
        return prediction.word.casefold() == reference.word.casefold()
    a, a_unit = _quantity(prediction)
    b, b_unit = _quantity(reference)
    if not units_agree(a_unit, b_unit):
        return False
    verdicts = [] if {a_unit, b_unit} == {"degree", "radian"} else [_same_nodes(a, b, comparer)]
    if prediction.percent != reference.percent:
        # A percent sign is a unit (28 % = 28) or a hundredth (28 % = 0.28).
        pair = (_times(a, _HUNDREDTH), b) if prediction.percent else (a, _times(b, _HUNDREDTH))
        verdicts.append(_same_nodes(*pair, comparer))
    if a_unit != b_unit and "degree" in (a_unit, b_unit) and {a_unit, b_unit} <= {"degree", "radian", ""}:
        pair = (_times(a, _DEGREE), b) if a_unit == "degree" else (a, _times(b, _DEGREE))
        verdicts.append(_same_nodes(*pair, comparer))
    return any_of(verdicts)


def _is_word(a: str, b: str) -> bool:
    """Letters that are compared as text: `Yes`, `yes`, `ABC`. Two in lower case, `ab` and `ba`, are products."""
    return not (a.islower() and b.islower())


def _quantity(answer: Scalar) -> tuple[tree.Node, str]:
    """The value without its unit, and the unit; a percent sign and degrees are units too."""
    node, degrees = without_degrees(matrices_combined(answer.node))
    if answer.percent:
        return node, "percent"
    return node, answer.unit or ("degree" if degrees else "")


def _units_agree(prediction: Answer, reference: Answer, *, converted: bool) -> bool:
    """False if a scalar of one answer has another unit than one of the other.

    converted: whether the values are compared with degrees converted to radians.
    """
    found = [{_quantity(scalar)[1] for scalar in _scalars(answer)} for answer in (prediction, reference)]
    return all(units_agree(a, b) and (converted or {a, b} != {"degree", "radian"}) for a in found[0] for b in found[1])


def _times(node: tree.Node, factor: tree.Node) -> tree.Node:
    return tree.Product((factor, node))


def _same_nodes(a: tree.Node, b: tree.Node, comparer: Comparer) -> bool | None:
    if isinstance(a, tree.Matrix) and isinstance(b, tree.Matrix):
        if (len(a.rows), len(a.rows[0])) != (len(b.rows), len(b.rows[0])):
            return False
        pairs = zip(sum(a.rows, ()), sum(b.rows, ()), strict=True)
        return all_of(comparer.equal(x, y) for x, y in pairs)
    if isinstance(a, tree.Matrix) or isinstance(b, tree.Matrix):
        return False
    return comparer.equal(a, b)


def _same_vector(
    items: tuple[Answer, ...], brackets: str, scalar: Scalar, comparer: Comparer, list_first: bool
) -> bool | None:
    """A tuple against a row or column, `[[1,2],[3,4]]` against a matrix, a set of one element against the element."""
    node = matrices_combined(scalar.node)
    if isinstance(node, tree.Matrix) and brackets in ("()", "<>", "[]"):
        if min(len(node.rows), len(node.rows[0])) > 1:
            rows = tuple(Several(tuple(Scalar(entry) for entry in row), "[]") for row in node.rows)
            return _all_same(items, rows, comparer) if list_first else _all_same(rows, items, comparer)
        entries = tuple(Scalar(entry) for entry in sum(node.rows, ()))
        return _all_same(items, entries, comparer) if list_first else _all_same(entries, items, comparer)
    if len(items) == 1 and brackets in ("{}", ""):
        return same(items[0], scalar, comparer) if list_first else same(scalar, items[0], comparer)
    return False


def _same_quotient(above: Scalar, below: Scalar, fraction: Scalar, comparer: Comparer) -> bool | None:
    """`2:3` against `2/3`. A ratio never equals a whole number, nor a time a fraction."""
    check_size(fraction.node)
    value = rational(fraction.node)
    if any(side.unit or side.percent for side in (above, below, fraction)) or value is None or value.denominator == 1:
        return False
    return comparer.equal(tree.quotient(above.node, below.node), fraction.node)


def _same_several(prediction: Several, reference: Several, comparer: Comparer) -> bool | None:
    brackets = {prediction.brackets, reference.brackets}
    a, b = prediction.items, reference.items
    if brackets <= {"", "{}"}:
        if brackets == {"{}"} or all(isinstance(item, Several) for item in (*a, *b)):
            a, b = _distinct(a), _distinct(b)
        return matched(a, b, lambda x, y: same(x, y, comparer))
    if len(brackets) > 1:
        if brackets & {"{}", "{|}", "(]", "[)"}:
            return False
        if "[]" in brackets and len(a) == 2:
            return False  # an interval is not a pair
    return _all_same(a, b, comparer)


def _distinct(items: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """Without repetition: the elements of a set, or solutions listed as tuples."""
    return tuple(
        dict.fromkeys(
            replace(item, node=tree.canonical(item.node)) if isinstance(item, Scalar) else item for item in items
        )
    )


def _same_relations(prediction: Relation, reference: Relation, comparer: Comparer) -> bool | None:
    if all(is_equation(side) and is_name(side.sides[0]) for side in (prediction, reference)):
        named = same(prediction.sides[0], reference.sides[0], comparer)
        if named is not False:
            return all_of([named, same(prediction.sides[-1], reference.sides[-1], comparer)])
    if len(prediction.sides) != len(reference.sides) or not _units_agree(prediction, reference, converted=True):
        return False
    turned = Relation(prediction.sides[::-1], tuple(_FLIPPED.get(sign, sign) for sign in reversed(prediction.signs)))
    verdicts = [
        _all_same(side.sides, reference.sides, comparer)
        for side in (prediction, turned)
        if side.signs == reference.signs
    ]
    if len(reference.signs) == 1:
        verdicts.append(_proportional(prediction, reference, comparer))
    return any_of(verdicts)


def _proportional(prediction: Relation, reference: Relation, comparer: Comparer) -> bool | None:
    """`2x < 6` and `x < 3`: the differences of the sides are a constant multiple of each other."""
    if not _units_agree(prediction, reference, converted=False):
        return False
    differences = [_difference(prediction), _difference(reference)]
    if differences[0] is None or differences[1] is None:
        return False
    ratio = comparer.ratio(differences[0], differences[1])
    if ratio is None:
        return None
    sign = prediction.signs[0] if ratio > 0 else _FLIPPED.get(prediction.signs[0])
    return ratio != 0 and sign == reference.signs[0]


def _difference(relation: Relation) -> tree.Node | None:
    left, right = relation.sides
    if not isinstance(left, Scalar) or not isinstance(right, Scalar):
        return None
    return tree.Sum((left.node, tree.negative(right.node)))


def _all_same(a: Sequence[Answer], b: Sequence[Answer], comparer: Comparer) -> bool | None:
    return all_of(same(x, y, comparer) for x, y in zip(a, b, strict=True)) if len(a) == len(b) else False
