"""Which pairs a verdict counts: one rule for studies, ledgers and the logs of other trainers."""

import itertools
from collections.abc import Collection, Sequence
from typing import TypeVar

Name = TypeVar("Name", bound=int | str)


def counted(complete: Collection[Name], planned: Sequence[Name] = (), begun: Collection[Name] = ()) -> list[Name]:
    """The pairs that a look may count, in their order: up to the first that is not complete.

    A pair may be late: a run of it failed, or trains on another machine. A look that counted those behind it would be
    made of other pairs than its own, and might be made twice, with two verdicts.

    planned: the pairs that were named before the first run, in the order in which they count. Others follow them, by
    number or name; of those, only a pair that has begun can be seen to be late.
    begun: pairs of which a run is missing.

    >>> counted([0, 1, 3, 4], range(4)), counted([0, 1, 8, 9], [8, 9]), counted(["2", "10", "9"], begun=["9"])
    ([0, 1], [8, 9, 0, 1], ['2'])
    """
    further = {*complete, *begun} - {*planned}
    there = {*complete} - {*begun}
    return list(itertools.takewhile(there.__contains__, [*planned, *sorted(further, key=_place)]))


def _place(name: int | str) -> tuple[bool, int, str, str]:
    """Whole numbers by value, then words."""
    text = str(name)
    digits = text.lstrip("0") if text.isdecimal() else ""
    return not text.isdecimal(), len(digits), digits, text
