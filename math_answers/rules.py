"""The rules by which an extracted answer equals a reference answer, as far as they decide in microseconds.

`decide` is meant for the training process: it does not import sympy, never evaluates anything whose size the text does
not bound, and returns None where the symbolic comparison (`full.FullComparer`) is needed.
"""

from functools import lru_cache
from typing import Literal, assert_never

from math_answers.marks import in_dollars
from math_answers.normalise import normalise_answer
from math_answers.quantity import read_quantity, same_number

Rule = Literal["dapo", "numeric", "sympy"]


@lru_cache(maxsize=65536)
def decide(prediction: str, answer: str, rule: Rule) -> bool | None:
    """True if `prediction` equals the reference `answer` under `rule`; None if that needs the symbolic comparison.

    The arguments are answers as `extraction.extract` returns them, not whole responses.

    >>> decide("1,000", "1000", "numeric"), decide("0.5", "1/2", "dapo")
    (True, False)
    """
    match rule:
        case "dapo":
            # An extraction turns the delimiters of a formula into single dollar signs; a reference may have others.
            written = (answer, in_dollars(answer))
            return normalise_answer(prediction) in map(normalise_answer, written)
        case "numeric":
            a, b = _quantity(prediction), _quantity(answer)
            return a is not None and b is not None and same_number(a, b)
        case "sympy":
            # The one rule that needs the grammar of answers: a run under another does not load it.
            from math_answers.fast import compared

            return compared(prediction, answer)
        case _:
            assert_never(rule)


_quantity = lru_cache(maxsize=65536)(read_quantity)


def check_reference(answer: str, rule: Rule) -> str | None:
    """Why a reference answer cannot be used under `rule`, None if it can."""
    if not answer.strip():
        return "the reference answer is empty"
    if rule == "numeric" and _quantity(answer) is None:
        return f"{answer[:80]!r} is not a number; use rule sympy or dapo"
    if rule == "dapo" and not normalise_answer(answer):
        return f"{answer[:80]!r} is empty after normalisation; use rule sympy"
    return None
