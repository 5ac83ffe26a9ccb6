"""Groups answers into classes of equivalent ones, for majority votes."""

from collections.abc import Callable, Sequence
from itertools import combinations

Equivalent = Callable[[list[tuple[str, str]]], list[bool]]
"""Verdicts on pairs of answers."""


def class_heads(groups: Sequence[Sequence[str]], equivalent: Equivalent) -> list[dict[str, str]]:
    """For each group of different answers: answer -> the first answer of its class.

    An answer joins the first class, in order of appearance, whose first answer it is equivalent to. `equivalent` is
    called once with the pairs of all groups.

    >>> class_heads([["1", "2", "1.0"]], lambda pairs: [float(a) == float(b) for a, b in pairs])
    [{'1': '1', '2': '2', '1.0': '1'}]
    """
    pairs = sorted({pair for answers in groups for pair in combinations(answers, 2)})
    verdicts = dict(zip(pairs, equivalent(pairs), strict=True)) if pairs else {}
    found = []
    for answers in groups:
        head: dict[str, str] = {}
        for answer in answers:
            head[answer] = next((first for first in head.values() if verdicts[first, answer]), answer)
        found.append(head)
    return found
