"""Decide whether an extracted answer equals the reference answer, as far as that takes microseconds.

`decide` runs in the training process: it imports neither sympy nor math-verify, never evaluates anything whose size the
text does not bound, and says None where only the symbolic comparison in a worker process can tell.
"""

import re
from functools import lru_cache
from typing import Literal, assert_never

from dapo_lit.answers.compare import Judge, same
from dapo_lit.answers.fast import FastJudge
from dapo_lit.answers.structure import Answer, parse_answer
from dapo_lit.answers.verdicts import any_of
from dapo_lit.rewards.normalise import normalise_answer
from dapo_lit.rewards.numbers import read_quantity, same_number

Rule = Literal["dapo", "numeric", "sympy"]


@lru_cache(maxsize=65536)
def decide(prediction: str, answer: str, rule: Rule) -> bool | None:
    """Whether `prediction` equals the reference `answer` under `rule`; None if that needs the symbolic comparison.

    The arguments are answers as `extraction.extract` returns them, not whole responses.

    >>> decide("1,000", "1000", "numeric"), decide("0.5", "1/2", "dapo")
    (True, False)
    """
    match rule:
        case "dapo":
            return normalise_answer(prediction) == normalise_answer(answer)
        case "numeric":
            a, b = _quantity(prediction), _quantity(answer)
            return a is not None and b is not None and same_number(a, b)
        case "sympy":
            return compare_answers(prediction, answer, _FAST)
        case _:
            assert_never(rule)


def compare_answers(prediction: str, answer: str, judge: Judge) -> bool | None:
    """Whether some reading of `prediction` is some reading of `answer`; None if the judge leaves that open.

    What is too large to evaluate, or has shapes that do not fit, is no answer: False.
    """
    if prediction.strip() == answer.strip():
        return bool(answer.strip())
    predictions = parse_answer(prediction)
    if _COMMA_DECIMAL.fullmatch(prediction.strip(" $")) and _POINT_DECIMAL.fullmatch(answer.strip(" $")):
        predictions = parse_answer(prediction.replace(",", "."))  # 3,5 is 3.5 where 3.5 is expected
    return any_of(_same(a, b, judge) for a in predictions for b in parse_answer(answer))


def _same(a: Answer, b: Answer, judge: Judge) -> bool | None:
    try:
        return same(a, b, judge)
    except ValueError:  # TooLargeError, or matrices whose shapes do not fit
        return False


_COMMA_DECIMAL = re.compile(r"-?[0-9]+,(?:[0-9]{1,2}|[0-9]{4,})")
_POINT_DECIMAL = re.compile(r"-?[0-9]+\.[0-9]+")
_FAST = FastJudge()
_quantity = lru_cache(maxsize=65536)(read_quantity)


def check_reference(answer: str, rule: Rule) -> str | None:
    """What keeps a reference answer from being used under `rule`, None if nothing does."""
    if not answer.strip():
        return "the reference answer is empty"
    if rule == "numeric" and _quantity(answer) is None:
        return f"{answer[:80]!r} is no number; use rule sympy or dapo"
    if rule == "dapo" and not normalise_answer(answer):
        return f"{answer[:80]!r} is empty after normalisation; use rule sympy"
    return None
