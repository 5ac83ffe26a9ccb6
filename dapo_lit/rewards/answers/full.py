"""The judge that runs in worker processes: exact fractions, then values at points, then sympy."""

from dapo_lit.rewards.answers import numeric, symbolic
from dapo_lit.rewards.answers.expression import Node
from dapo_lit.rewards.answers.fast import FastJudge


class FullJudge:
    """Values at points refute; what they cannot tell apart must not differ for sympy either.

    Evaluation to 50 digits and more at up to eight points comes first because it is cheap and always ends. sympy then
    multiplies the difference out: 0 is a proof, any other number a refutation, anything else leaves the first verdict.
    """

    def __init__(self) -> None:
        self._fast = FastJudge()

    def equal(self, a: Node, b: Node) -> bool | None:
        verdict = self._fast.equal(a, b)
        if verdict is not None:
            return verdict
        agree = numeric.agree(a, b)
        if agree is False:
            return False
        exact = symbolic.difference(a, b)
        return bool(agree) if exact is None else exact

    def ratio(self, a: Node, b: Node) -> int | None:
        return self._fast.ratio(a, b) or numeric.ratio_sign(a, b) or 0
