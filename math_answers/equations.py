"""Answers that name what they give: `x = 5`, `AB = 4, CD = 5`, `x \\in S`, `1 \\pm 2`, `\\frac{1}{3} \\approx 0.33`."""

from dataclasses import replace

from math_answers import expression as tree
from math_answers.exact import signs_chosen
from math_answers.structure import Answer, Combined, Ratio, Raw, Reals, Relation, Scalar, Several, Words


def is_name(answer: Answer) -> bool:
    r"""True if an answer only names a quantity: `x`, `AB`, `f(x)`, `P(A)`, `(p, q)`, `\text{Area}`, `S_1 : S_2`.

    `a + b` and `x^2` are expressions, not names: `x^2 = 4` does not say that the answer is 4.
    """
    match answer:
        case Scalar(node, _, _, _):
            return _names(node)
        case Words() | Raw():
            return True
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


def expanded(answer: Answer) -> Answer:
    r"""`1 \pm 2` as a list of two values; inside a list, the two values in its place."""
    match answer:
        case Scalar(node, _, _, _) if any(isinstance(part, tree.PlusMinus) for part in tree.walk(node)):
            return Several(tuple(replace(answer, node=value) for value in signs_chosen(node)), "")
        case Relation((left, right), signs) if isinstance(expanded(right), Several) and isinstance(right, Scalar):
            values = expanded(right)
            assert isinstance(values, Several)
            return Several(tuple(Relation((left, value), signs) for value in values.items), "")
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
