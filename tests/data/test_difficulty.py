"""Difficulty bounds keep and drop the right problems."""

import pytest

from dapo_lit.data.problem import Problem
from dapo_lit.data.selection import within_difficulty
from dapo_lit.data.sources import DataError


def graded(*levels: object) -> list[Problem]:
    return [Problem(str(i), "?", "0", {"level": level}) for i, level in enumerate(levels)]


@pytest.mark.parametrize(
    ("low", "high", "kept"),
    [(2, 4, "125"), (None, 2, "015"), (3, None, "23"), (None, None, "01235"), (2.5, 3.5, "2")],
)
def test_bounds_are_inclusive_and_a_problem_without_a_level_is_dropped(low, high, kept):
    problems = graded(1, 2, "Level 3", "5", "Level ?", 2.0, None, True)
    inside, outside = within_difficulty(problems, "level", low, high)
    assert "".join(p.id for p in inside) == kept
    assert sorted(p.id for p in inside + outside) == sorted(p.id for p in problems)


def test_a_key_that_no_problem_has_is_refused_with_those_there_are():
    with pytest.raises(DataError, match=r"'difficulty'.*level"):
        within_difficulty(graded(1, 2), "difficulty", 1, 2)
