"""The comparer that runs in worker processes: exact fractions, then values at points, then sympy."""

import math
from fractions import Fraction

from math_answers import points, symbolic
from math_answers.compare import compare_answers
from math_answers.expression import Call, Node, Number, children, quotient, rebuilt, symbols, walk
from math_answers.fast import FastComparer


class FullComparer:
    """Values at points refute; expressions with letters that agree at all points are also multiplied out by sympy.

    Evaluation to 50 digits and more at eight points, and around the breaks of absolute values and roots, comes first
    because it is cheap and always ends; it is the verdict for constants (surds). For letters sympy multiplies the
    difference out: 0 proves equality, any other number refutes it, and anything else leaves the first verdict.
    """

    budget = math.inf
    """Steps; the deadline of the worker is the limit."""

    def __init__(self) -> None:
        self._fast = FastComparer()

    def equal(self, a: Node, b: Node) -> bool | None:
        verdict = self._fast.equal(a, b)
        if verdict is not None:
            return verdict
        if _has_logarithm(a) or _has_logarithm(b):
            # log without a base is natural in analysis and decimal in contests; both sides are read the same way.
            return any(self.equal(*(_based(node, base) for node in (a, b))) for base in (None, Fraction(10)))
        agree = points.agree(a, b)
        if agree is False or (agree and not symbols(a) and not symbols(b)):
            return agree
        exact = symbolic.difference(a, b)
        return bool(agree) if exact is None else exact

    def ratio(self, a: Node, b: Node) -> int | None:
        return self._fast.ratio(a, b) or points.ratio_sign(a, b) or 0


def _has_logarithm(node: Node) -> bool:
    return any(isinstance(part, Call) and part.name == "log" for part in walk(node))


def _based(node: Node, base: Fraction | None) -> Node:
    """The expression with `log` of a base, None for the natural one."""
    node = rebuilt(node, tuple(_based(part, base) for part in children(node)))
    if not isinstance(node, Call) or node.name != "log":
        return node
    natural = Call("ln", node.arguments)
    return natural if base is None else quotient(natural, Call("ln", (Number(base),)))


def compared(prediction: str, answer: str) -> bool:
    """True if the answers are the same, by all that this comparer has."""
    return bool(compare_answers(prediction, answer, FullComparer()))
