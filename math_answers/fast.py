"""The comparer that runs in the training process: decides what the form or exact fractions decide, in microseconds."""

from fractions import Fraction
from functools import lru_cache

from math_answers.bounds import check_size, printed_error
from math_answers.compare import compare_answers
from math_answers.exact import rational
from math_answers.expression import Constant, Node, canonical, walk
from math_answers.quantity import close

BUDGET = 20_000
"""Steps that a comparison in the training process may take, as `bounds.work` estimates them: about 50 ms."""


class FastComparer:
    budget: float = BUDGET

    def equal(self, a: Node, b: Node) -> bool | None:
        if canonical(a) == canonical(b):
            return True
        if _infinite(a) != _infinite(b):
            return False
        x, y = value(a), value(b)
        if x is None or y is None:
            return None
        return close(x, y, printed_error(a, b))

    def ratio(self, a: Node, b: Node) -> int | None:
        return 1 if canonical(a) == canonical(b) else None


@lru_cache(maxsize=1024)
def value(node: Node) -> Fraction | None:
    check_size(node)
    return rational(node)


def _infinite(node: Node) -> bool:
    return any(part == Constant("oo") for part in walk(node))


_FAST = FastComparer()


def compared(prediction: str, answer: str) -> bool | None:
    """True if the answers are the same; None where only the symbolic comparison decides."""
    return compare_answers(prediction, answer, _FAST)
