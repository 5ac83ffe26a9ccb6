"""The verdict on two answers, as the workers reach it."""

from dapo_lit.answers.compare import compare_answers
from dapo_lit.answers.full import FullComparer
from dapo_lit.rewards.equivalence import decide

COMPARER = FullComparer()


def same(prediction: str, answer: str) -> bool:
    verdict = compare_answers(prediction, answer, COMPARER)
    assert verdict is not None
    fast = decide(prediction, answer, "sympy")
    assert fast in (None, verdict)  # the training process never contradicts a worker
    return verdict
