"""Verdicts have three values: True, False, and None where only the symbolic comparison decides."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def all_of(verdicts: Iterable[bool | None]) -> bool | None:
    """False if one is False, else None if one is None."""
    undecided = False
    for verdict in verdicts:
        if verdict is False:
            return False
        undecided |= verdict is None
    return None if undecided else True


def any_of(verdicts: Iterable[bool | None]) -> bool | None:
    """True if one is True, else None if one is None."""
    undecided = False
    for verdict in verdicts:
        if verdict:
            return True
        undecided |= verdict is None
    return None if undecided else False


def matched(a: Sequence[Item], b: Sequence[Item], equal: Callable[[Item, Item], bool | None]) -> bool | None:
    """True if the items agree in some order."""
    if len(a) != len(b):
        return False
    left = list(b)
    undecided = False
    for item in a:
        verdicts = [equal(item, other) for other in left]
        if True in verdicts:
            left.pop(verdicts.index(True))
        elif None in verdicts:
            undecided = True
        else:
            return False
    return None if undecided else True
