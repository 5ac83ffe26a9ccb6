"""The verdict on two answers, as the workers reach it."""

from math_answers.compare import compare_answers
from math_answers.full import FullComparer
from math_answers.rules import decide

COMPARER = FullComparer()


def same(prediction: str, answer: str) -> bool:
    verdict = compare_answers(prediction, answer, COMPARER)
    assert verdict is not None
    fast = decide(prediction, answer, "sympy")
    assert fast in (None, verdict)  # the training process never contradicts a worker
    return verdict
