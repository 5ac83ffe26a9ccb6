"""Difficulty bounds: selects problems by a number in their rows, such as MATH's level."""

import re
from collections.abc import Sequence

from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import DataError

LEVEL = re.compile(r"(?:level\s*)?(-?\d+(?:\.\d+)?)", re.IGNORECASE)


def within_difficulty(
    problems: Sequence[Problem], key: str, low: float | None = None, high: float | None = None
) -> tuple[list[Problem], list[Problem]]:
    """(kept, dropped): kept are the problems with low <= meta[key] <= high; None leaves a side open.

    A value is a number or a text such as MATH's "Level 5"; a problem without one (MATH's "Level ?") is dropped.
    Raises DataError if no problem has the key, and ValueError if low > high.
    """
    if low is not None and high is not None and low > high:
        raise ValueError(f"difficulty bounds are empty: low {low} is above high {high}")
    if problems and not any(key in problem.meta for problem in problems):
        known = sorted({name for problem in problems for name in problem.meta})
        raise DataError(f"no problem has the key {key!r} as its difficulty; keys are {', '.join(known) or 'none'}")
    kept: list[Problem] = []
    dropped: list[Problem] = []
    for problem in problems:
        level = _level(problem.meta.get(key))
        inside = level is not None and (low is None or low <= level) and (high is None or level <= high)
        (kept if inside else dropped).append(problem)
    return kept, dropped


def _level(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    found = LEVEL.fullmatch(value.strip()) if isinstance(value, str) else None
    return float(found[1]) if found else float(value) if isinstance(value, int | float) else None
