"""Four one-digit questions: the smallest task on which a policy learns, from chance to 100 % right."""

from dapo_lit.data.problem import Problem

CHARACTERS = "0123456789+-*/=? "
"""Every character of a prompt or a response."""

_QUESTIONS = (("2 + 3 = ?", "5"), ("4 * 2 = ?", "8"), ("10 - 7 = ?", "3"), ("6 / 2 = ?", "3"))


def problems() -> list[Problem]:
    """
    >>> [problem.answer for problem in problems()]
    ['5', '8', '3', '3']
    """
    return [Problem(f"four_sums-{index}", text, answer) for index, (text, answer) in enumerate(_QUESTIONS)]
