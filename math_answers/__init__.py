r"""Mathematical answers: find them in a text, and decide whether two are the same. No text is evaluated as code.

    >>> from math_answers import equal, extract, verdict
    >>> extract(r"Half of it, so \boxed{\frac{1}{2}}.", "boxed")
    '\\frac{1}{2}'
    >>> equal("0.5", r"\frac{1}{2}"), equal(r"\sqrt{12}", r"2\sqrt3"), equal("(1, 2)", "(2, 1)")
    (True, True, False)
    >>> verdict("So he pays 5 + 3 = 8 dollars.", "8")
    True

The package imports nothing of `dapo_lit`. `equal` and `verdict` compute in this process, without a deadline; the
expressions they meet are bounded in size, but a comparison of hostile ones may take minutes. `dapo_lit.rewards` runs
the same comparison in worker processes with deadlines. README.md lists what is read and how it stays safe.
"""

from math_answers.extraction import Extraction, extract, reference_answer
from math_answers.rules import Rule, decide

__all__ = ["Extraction", "Rule", "equal", "extract", "verdict"]


def equal(prediction: str, reference: str, rule: Rule = "sympy") -> bool:
    """True if the two answers are the same under `rule`; loads sympy where exact fractions do not decide."""
    decided = decide(prediction, reference, rule)
    if decided is None:
        from math_answers.full import compared

        decided = compared(prediction, reference)
    return decided


def verdict(response: str, reference: str, extraction: Extraction = "auto", rule: Rule = "sympy") -> bool:
    """True if the answer found in `response` equals `reference`, which may be a worked solution under `auto`."""
    answer = extract(response, extraction)
    return answer is not None and equal(answer, reference_answer(reference, extraction), rule)
