"""The judge that runs in the training process: decides what the form or exact fractions decide, in microseconds."""

from dapo_lit.answers.bounds import check_size, has_double
from dapo_lit.answers.exact import rational
from dapo_lit.answers.expression import Constant, Node, canonical, walk
from dapo_lit.rewards.numbers import close


class FastJudge:
    def equal(self, a: Node, b: Node) -> bool | None:
        if canonical(a) == canonical(b):
            return True
        if _infinite(a) != _infinite(b):
            return False
        check_size(a)
        check_size(b)
        x, y = rational(a), rational(b)
        if x is None or y is None:
            return None
        return close(x, y, has_double(a) or has_double(b))

    def ratio(self, a: Node, b: Node) -> int | None:
        return 1 if canonical(a) == canonical(b) else None


def _infinite(node: Node) -> bool:
    return any(part == Constant("oo") for part in walk(node))
