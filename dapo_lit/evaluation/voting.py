"""What the samples of one problem say: avg@n, cons@n by majority vote among equivalent answers, unbiased pass@k."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

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


@dataclass(frozen=True)
class VoteCounts:
    """The votes of the samples of one problem."""

    right: int
    """Samples with a right answer."""
    wrong: tuple[int, ...]
    """Samples of each class of equivalent wrong answers."""
    silent: int
    """Samples without an answer; they have no vote."""

    @property
    def num_samples(self) -> int:
        return self.right + sum(self.wrong) + self.silent


Answers = Sequence[tuple[str | None, bool]]
"""(answer, correct) of each sample of a problem."""


def vote_counts(problems: Sequence[Answers], equivalent: Equivalent) -> list[VoteCounts]:
    """The votes of each problem. All right answers form one class; wrong answers are grouped by class_heads."""
    wrong = [[answer for answer, correct in answers if not correct and answer is not None] for answers in problems]
    # Without a right answer the vote is lost, whatever the classes are: no verdicts are needed.
    has_right = [any(correct for _, correct in answers) for answers in problems]
    groups = [[*dict.fromkeys(votes)] if right else [] for votes, right in zip(wrong, has_right, strict=True)]
    heads = class_heads(groups, equivalent)
    return [
        VoteCounts(
            right=sum(correct for _, correct in answers),
            wrong=tuple(Counter(head.get(vote, vote) for vote in votes).values()),
            silent=sum(answer is None and not correct for answer, correct in answers),
        )
        for answers, votes, head in zip(problems, wrong, heads, strict=True)
    ]


def average(problem: VoteCounts) -> float:
    """avg@n: the share of right samples among the problem's n with a verdict.

    >>> average(VoteCounts(right=1, wrong=(2,), silent=1))
    0.25
    """
    return problem.right / problem.num_samples


def consensus(problem: VoteCounts) -> float:
    """cons@n over all n samples: 1 if the right answer has the most votes, 1/t if t classes share the most votes.

    >>> consensus(VoteCounts(right=2, wrong=(2, 1), silent=3))
    0.5
    """
    most = max(problem.wrong, default=0)
    if not problem.right or problem.right < most:
        return 0.0
    return 1 / (1 + sum(votes == most for votes in problem.wrong)) if problem.right == most else 1.0


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate of the probability that one of k samples is right (Chen et al. 2021, arXiv 2107.03374, Eq. 1).

    >>> pass_at_k(num_samples=4, num_correct=1, k=2)
    0.5
    """
    return 1 - comb(num_samples - num_correct, k) / comb(num_samples, k)
