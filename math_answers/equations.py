"""Answers that name what they give: `x = 5`, `AB = 4, CD = 5`, `x \\in S`, `1 \\pm 2`, `\\frac{1}{3} \\approx 0.33`."""

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from math_answers import expression as tree
from math_answers.exact import approximate, signs_chosen
from math_answers.structure import Answer, Combined, Ratio, Raw, Reals, Relation, Scalar, Several, Words
from math_answers.tokens import words
from math_answers.verdicts import all_of, any_of

_DENIALS = words(
    """
    no not never cannot none impossible contradiction false wrong incorrect unless except without
    maybe perhaps possibly exceeds exceeding
    """
)
# `the number of primes less than 10` names a quantity, `less than x` and `at least x` do not
_COMPARISON = re.compile(
    r"\b(?:than|at least|at most)\b(?!\s-?\s?[0-9])|^\w+ than\b|^at (?:least|most)\b|^up to\b"
    r"|^(?:some|any|few|if|about|around|above|below|under|over|beyond|nearly|almost|roughly|approximately)\b"
    r"|^(?:neither|either) \w"
)
_SENTENCE_END = re.compile(r"(?:^|\s)[.?!;](?:\s|$)")
_LAST_NUMBER = re.compile(r"(?:[^\W\d_]+[\s,]+){3,}(-?\s?[0-9]{1,40}(?:\.[0-9]{1,40})?)$")


def is_name(answer: Answer) -> bool:
    r"""True if an answer only names a quantity: `x`, `AB`, `f(x)`, `P(A)`, `(p, q)`, `\text{Area}`, `S_1 : S_2`.

    `a + b` and `x^2` are expressions, not names: `x^2 = 4` does not say that the answer is 4. Nor are `not x`,
    `more than x` and `at least x`, whether `=`, `\in` or `\approx` follows.
    """
    match answer:
        case Scalar(node, _, _, _):
            return _names(node)
        case Words(text) | Raw(text):
            return is_noun_phrase(text)
        case Several(items, "()" | "") | Ratio(items):
            return all(is_name(item) for item in items)
        case _:
            return False


def _names(node: tree.Node) -> bool:
    match node:
        case tree.Symbol() | tree.Constant("e" | "i"):
            return True
        case tree.Product(factors):
            return all(_names(factor) for factor in factors)
        case tree.Power(base, exponent):
            return exponent == tree.MINUS_ONE and _names(base)
        case tree.Call(name, arguments):
            return len(name.rstrip("'")) == 1 or (name == "abs" and all(_names(argument) for argument in arguments))
        case _:
            return False


def is_consistent(answer: Answer, agree: Callable[[Scalar, Scalar], bool | None]) -> bool | None:
    r"""False for a statement that contradicts or denies itself, and so gives no answer: `3 = 5`, `0.2 \approx 7`,
    `No. This leads to 0 = 1`.

    Of a chain, the last number counts if another one confirms it: `5 + 3 = 8 \cdot 2 = 16` is 16.
    agree: whether two constants have the same value; None where that is not decided.
    """
    if isinstance(answer, Several):
        return all_of(is_consistent(item, agree) for item in answer.items if isinstance(item, Relation))
    if not isinstance(answer, Relation) or not set(answer.signs) <= {"=", "approx", "equiv"}:
        return True
    if any(isinstance(side, Words | Raw) and not is_name(side) for side in answer.sides):
        return False
    values = [_constant(side) for side in answer.sides]
    for before, after, sign in zip(values, values[1:], answer.signs, strict=False):
        if sign == "approx" and before is not None and after is not None and not _near(before, after):
            return False
    if set(answer.signs) != {"="}:
        return True
    numbers = [value for value in values if value is not None]
    others = [a for a in numbers[:-1] if (a.unit, a.percent) == (numbers[-1].unit, numbers[-1].percent)]
    return any_of(agree(other, numbers[-1]) for other in others) if others else True


def is_noun_phrase(text: str) -> bool:
    """Words without a denial, a comparison or a quantifier, and no sentences: `No. This would lead to 0`."""
    folded = text.casefold()
    return (
        _SENTENCE_END.search(text) is None
        and _DENIALS.isdisjoint(folded.split())
        and _COMPARISON.search(folded) is None
    )


def _constant(side: Answer) -> Scalar | None:
    """A side that is a number, also at the end of a sentence; letters, series and matrices may have any value."""
    if isinstance(side, Words | Raw):
        stated = _LAST_NUMBER.search(side.text)
        return Scalar(tree.Number(Fraction("".join(stated[1].split())))) if stated else None
    if not isinstance(side, Scalar) or is_name(side):
        return None
    open_ended = (tree.Symbol, tree.Series, tree.Matrix, tree.PlusMinus)
    for part in tree.walk(side.node):
        unknown = isinstance(part, tree.Call) and len(part.name.rstrip("'")) == 1
        if isinstance(part, open_ended) or unknown or part == tree.Constant("oo"):
            return None
    return side


def _near(a: Scalar, b: Scalar) -> bool:
    """`\\frac13 \\approx 0.33`, and anything rounded to an integer."""
    x, y = approximate(a.node), approximate(b.node)
    return not abs(x - y) > max(0.5, 0.1 * abs(x))  # nan: not known


def expanded(answer: Answer) -> Answer:
    r"""`1 \pm 2` as a list of two values; inside a list, the two values in its place."""
    match answer:
        case Scalar(node, _, _, _) if any(isinstance(part, tree.PlusMinus) for part in tree.walk(node)):
            return Several(tuple(replace(answer, node=value) for value in signs_chosen(node)), "")
        case Relation((left, right), signs) if isinstance(expanded(right), Several) and isinstance(right, Scalar):
            values = expanded(right)
            assert isinstance(values, Several)
            return Several(tuple(Relation((left, value), signs) for value in values.items), "")
        case Several((Relation((name, first), ("ne",)), *others), "") if others and not any(
            isinstance(item, Relation) for item in others
        ):
            return Several(tuple(Relation((name, value), ("ne",)) for value in (first, *others)), "")  # x != 5, -5
        case Several(items, "" | "{}" as brackets):
            flat: list[Answer] = []
            for item in items:
                values = expanded(item)
                flat += (
                    values.items
                    if isinstance(values, Several) and values is not item and not values.brackets
                    else [item]
                )
            return Several(tuple(flat), brackets) if len(flat) > len(items) else answer
        case _:
            return answer


def without_approximation(answer: Answer) -> Answer:
    r"""The approximated side: `\frac{1}{3} \approx 0.33` is a third, but `x \approx 11` is x = 11. `x \in S` is S."""
    if not isinstance(answer, Relation):
        return answer
    if "approx" in answer.signs:
        first = answer.signs.index("approx")
        if first > 0 or not is_name(answer.sides[0]):
            answer = replace(answer, sides=answer.sides[: first + 1], signs=answer.signs[:first])
    if not answer.signs:
        return answer.sides[0]
    signs = tuple("=" if sign in ("approx", "equiv") else sign for sign in answer.signs)
    if signs == ("in",) and is_name(answer.sides[0]) and isinstance(answer.sides[1], Several | Combined | Reals):
        return answer.sides[1]  # x \in \{5\}; a number has no elements
    return replace(answer, signs=signs)


def is_equation(answer: Answer) -> bool:
    return isinstance(answer, Relation) and set(answer.signs) == {"="}


def unnamed(prediction: Answer, reference: Answer) -> tuple[Answer, Answer]:
    """Both answers without the name of the quantity, where only one of them has it."""
    if isinstance(prediction, Relation) and is_equation(prediction):
        if not isinstance(reference, Relation) and not _names_list(reference) and not _unsolved(prediction):
            first, last = prediction.sides[0], prediction.sides[-1]
            return first if is_name(last) and not is_name(first) else last, reference
        return prediction, reference
    if isinstance(reference, Relation):
        named = is_equation(reference) and is_name(reference.sides[0]) and not isinstance(prediction, Relation)
        return prediction, reference.sides[-1] if named else reference
    if isinstance(prediction, Several) and isinstance(reference, Several):
        if _names_list(prediction) != _names_list(reference):
            return _values(prediction), _values(reference)
        if _names_first(prediction) and _names_first(reference):
            if _left(prediction.items[0]) == _left(reference.items[0]):
                return _values(prediction), _values(reference)
        elif _names_first(prediction) or _names_first(reference):
            return _values(prediction), _values(reference)
    return prediction, reference


def _unsolved(equation: Relation) -> bool:
    """`2x = 5`, `x + 1 = 5`, `x^2 = 5`: the equation is not solved for the unknown, so neither side is its value."""
    left = equation.sides[0]
    if len(equation.sides) != 2 or not isinstance(left, Scalar) or is_name(left):
        return False
    parts = list(tree.walk(left.node))
    letters = {part for part in parts if isinstance(part, tree.Symbol)}
    plain = (tree.Symbol, tree.Number, tree.Sum, tree.Product, tree.Power)
    return len(letters) == 1 and all(isinstance(part, plain) for part in parts)


def _names_list(answer: Answer) -> bool:
    """`AB = 4, CD = 5`"""
    return isinstance(answer, Several) and all(is_equation(item) and is_name(_left(item)) for item in answer.items)


def _names_first(answer: Several) -> bool:
    """`n = 1, 2, 3`"""
    return (
        len(answer.items) > 1
        and is_equation(answer.items[0])
        and is_name(_left(answer.items[0]))
        and not any(isinstance(item, Relation) for item in answer.items[1:])
    )


def _left(answer: Answer) -> Answer:
    assert isinstance(answer, Relation)
    return answer.sides[0]


def _values(answer: Several) -> Several:
    """The right sides: in order if the names differ (`a = 1, b = 2`), a bare list if they are one (`x = 1, x = 2`)."""
    if not any(isinstance(item, Relation) for item in answer.items):
        return answer
    names = {_left(item) for item in answer.items if isinstance(item, Relation)}
    values = tuple(item.sides[-1] if isinstance(item, Relation) else item for item in answer.items)
    return Several(values, "" if len(names) == 1 else "()")
