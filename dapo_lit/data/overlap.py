"""Finds training problems that contain an evaluation problem, by n-gram containment.

For an evaluation problem e and a training problem t, containment is the share of e's distinct n-grams of words that
occur in t: 1 if t quotes e in full, whatever surrounds the quotation. t overlaps if the containment of some e exceeds
the threshold. Case, punctuation and LaTeX commands are ignored (`\\dfrac` or `\\frac`, `$...$` or `\\(...\\)`).
Rewordings and translations are not found.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dapo_lit.data.problem import Problem

# Letters and digits, or one character of a script written without blanks (Chinese, Japanese).
WORD = re.compile(r"[぀-ヿ一-鿿]|[^\W_぀-ヿ一-鿿]+")
# Not part of a word: a LaTeX command, and the comma in 1,760.
NOISE = re.compile(r"\\[a-zA-Z]+|(?<=\d),(?=\d{3}(?!\d))")


@dataclass(frozen=True)
class Overlap:
    """A training problem and the evaluation problem with the largest containment in it."""

    train_id: str
    evaluation_id: str
    containment: float
    """In (threshold, 1]."""


@dataclass
class OverlapReport:
    """Training problems that overlap an evaluation set."""

    num_train: int
    num_evaluation: int
    overlaps: list[Overlap] = field(default_factory=list)
    """One for each overlapping training problem, in the order of the training set."""
    covered: set[str] = field(default_factory=set)
    """Ids of the evaluation problems that at least one training problem overlaps."""

    @property
    def excluded(self) -> set[str]:
        """Ids of the overlapping training problems."""
        return {overlap.train_id for overlap in self.overlaps}

    def without_overlap(self, train: Sequence[Problem]) -> list[Problem]:
        """The training problems that do not overlap."""
        excluded = self.excluded
        return [problem for problem in train if problem.id not in excluded]

    def __str__(self) -> str:
        share = f" ({len(self.covered) / self.num_evaluation:.0%})" if self.num_evaluation else ""
        return (
            f"{len(self.covered)} of {self.num_evaluation} evaluation problems{share} are in the training set; "
            f"{len(self.overlaps)} of {self.num_train} training problems overlap"
        )


def find_overlaps(
    train: Sequence[Problem], evaluation: Sequence[Problem], *, n: int = 10, threshold: float = 0.5
) -> OverlapReport:
    """The training problems that contain more than `threshold` of the n-grams of an evaluation problem.

    Only the evaluation set is indexed: time grows with the training set, memory with the evaluation set. A problem of
    fewer than n words counts as a single n-gram.
    """
    if n < 1:
        raise ValueError(f"n counts words and must be at least 1, got {n}")
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold is a share and must be in [0, 1), got {threshold}")
    grams = [ngram_hashes(problem.problem, n) for problem in evaluation]
    index: dict[int, list[int]] = {}
    for number, hashes in enumerate(grams):
        for value in hashes:
            index.setdefault(value, []).append(number)
    report = OverlapReport(num_train=len(train), num_evaluation=len(evaluation))
    for problem in train:
        shared = Counter(number for value in ngram_hashes(problem.problem, n) for number in index.get(value, ()))
        containment = {number: count / len(grams[number]) for number, count in shared.items()}
        above = {number: share for number, share in containment.items() if share > threshold}
        if above:
            most = max(above, key=above.__getitem__)
            report.overlaps.append(Overlap(problem.id, evaluation[most].id, above[most]))
            report.covered.update(evaluation[number].id for number in above)
    return report


def ngram_hashes(text: str, n: int) -> set[int]:
    """Hashes of the distinct n-grams of words; comparable within one process only."""
    words = WORD.findall(NOISE.sub(lambda match: "" if match[0] == "," else " ", text).lower())
    if not words:
        return set()
    return {hash(tuple(words[start : start + n])) for start in range(max(1, len(words) - n + 1))}
