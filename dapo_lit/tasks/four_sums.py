"""Four one-digit questions: the smallest task on which a policy learns, from chance to 100 % right."""

from collections.abc import Mapping
from typing import Any, NoReturn

from dapo_lit.data.problem import Problem
from dapo_lit.tasks.generated import ProblemSets

CHARACTERS = "0123456789+-*/=? "
"""Every character of a prompt or a response."""

_QUESTIONS = (("2 + 3 = ?", "5"), ("4 * 2 = ?", "8"), ("10 - 7 = ?", "3"), ("6 / 2 = ?", "3"))


def problems() -> list[Problem]:
    """
    >>> [problem.answer for problem in problems()]
    ['5', '8', '3', '3']
    """
    return [Problem(f"four_sums-{index}", text, answer) for index, (text, answer) in enumerate(_QUESTIONS)]


def problem_sets(num_train: int | None, num_heldout: int, options: Mapping[str, Any]) -> ProblemSets:
    if options:
        raise ValueError("four_sums has no options")
    return ProblemSets(problems(), problems()[:num_heldout])


def mixture(shares: Mapping[str, Any], options: Mapping[str, Any]) -> NoReturn:
    raise ValueError("four_sums has no demonstrations: its base policies are random")


def long_chains(share: float) -> NoReturn:
    raise ValueError("four_sums has no demonstrations: its base policies are random")
