"""Selects the training problems of a data set and accounts for the others, for the run's output and run.json.

Filters in this order: duplicates, overlap with evaluation sets, number of problems.

Each statement is kept once. One that is given with different answers is dropped: which is right is unknown, and a wrong
reference answer rewards wrong responses. Overlap is n-gram containment: the share of an evaluation problem's distinct
n-grams of words that occur in a training problem, 1 where it is quoted in full. Case, punctuation and LaTeX commands
are ignored (`\\dfrac` or `\\frac`, `$...$` or `\\(...\\)`); rewordings and translations are not found.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import DataError


def statement_key(problem: Problem) -> tuple[str, ...]:
    """Equal for problems with the same statement, and the same messages before it, up to blanks and case."""
    texts = (*(message["content"] for message in problem.before), problem.problem)
    return tuple("".join(text.split()).lower() for text in texts)


def deduplicate(problems: Sequence[Problem]) -> tuple[list[Problem], dict[str, int]]:
    """Each statement once, the first of its kind, and none that is given with different answers; and numbers of rows.

    Statements that differ only in blanks and case are the same; punctuation and signs make them different. The numbers
    are of all rows, of those that repeat an earlier one exactly, of those that restate it (blanks or case differ), and
    of those whose answers contradict each other.
    """
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        groups.setdefault(statement_key(problem), []).append(problem)
    counts = {"rows": len(problems), "repeated": 0, "restated": 0, "conflicting": 0}
    kept: list[Problem] = []
    for group in groups.values():
        if len({problem.answer.strip() for problem in group}) > 1:
            counts["conflicting"] += len(group)
            continue
        wordings = len({problem.problem for problem in group})
        counts["restated"] += wordings - 1
        counts["repeated"] += len(group) - wordings
        kept.append(group[0])
    return kept, counts


# Letters and digits, or one character of a script written without blanks (Chinese, Japanese).
WORD = re.compile(r"[぀-ヿ一-鿿]|[^\W_぀-ヿ一-鿿]+")
# Not part of a word: a LaTeX command, and the comma in 1,760.
NOISE = re.compile(r"\\[a-zA-Z]+|(?<=\d),(?=\d{3}(?!\d))")


def find_overlaps(
    train: Sequence[Problem], evaluation: Sequence[Problem], *, n: int = 10, threshold: float = 0.5
) -> tuple[set[str], set[str]]:
    """Ids of the training problems that contain more than `threshold` of an evaluation problem's n-grams, and ids of
    the evaluation problems that are contained.

    Only the evaluation set is indexed: time grows with the training set, memory with the evaluation set. A problem of
    fewer than n words counts as a single n-gram.
    """
    grams = [ngram_hashes(problem.problem, n) for problem in evaluation]
    index: dict[int, list[int]] = {}
    for number, hashes in enumerate(grams):
        for value in hashes:
            index.setdefault(value, []).append(number)
    excluded, covered = set[str](), set[str]()
    for problem in train:
        shared = Counter(number for value in ngram_hashes(problem.problem, n) for number in index.get(value, ()))
        above = {evaluation[number].id for number, count in shared.items() if count / len(grams[number]) > threshold}
        if above:
            excluded.add(problem.id)
            covered |= above
    return excluded, covered


def ngram_hashes(text: str, n: int) -> set[int]:
    """Hashes of the distinct n-grams of words; comparable within one process only."""
    words = WORD.findall(NOISE.sub(lambda match: "" if match[0] == "," else " ", text).lower())
    if not words:
        return set()
    return {hash(tuple(words[start : start + n])) for start in range(max(1, len(words) - n + 1))}


@dataclass
class SelectionReport:
    """What became of the problems that were read: `counts` as JSON values, `lines` as text."""

    counts: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def add_duplicates(self, counts: Mapping[str, int]) -> None:
        self.counts["duplicates"] = dict(counts)
        dropped = counts["repeated"] + counts["restated"] + counts["conflicting"]
        self.lines.append(
            f"duplicates: {counts['rows']:,} rows, {counts['rows'] - dropped:,} problems kept; {counts['repeated']:,} "
            f"exact repetitions; {counts['restated']:,} restated (blanks or case differ); {counts['conflicting']:,} "
            "with conflicting answers"
        )

    def with_prompts(self, num_train: int, num_heldout: int, num_long: int, num_long_heldout: int) -> "SelectionReport":
        """A copy with the numbers of prompts that are used and of problems whose prompt was too long."""
        counts = {"train": num_train, "heldout": num_heldout, "long": num_long, "long_heldout": num_long_heldout}
        line = f"problems: {num_train:,} to train on, {num_heldout:,} held out"
        if num_long or num_long_heldout:
            line += f"; left out, prompt above task.max_prompt_tokens: {num_long:,} and {num_long_heldout:,}"
        return SelectionReport({**self.counts, **counts}, [*self.lines, line])


def select(
    problems: Sequence[Problem],
    selection: SelectionReport,
    *,
    drops_duplicates: bool = False,
    evaluations: Mapping[str, Sequence[Problem]] | None = None,
    num_problems: int | None = None,
) -> list[Problem]:
    """The problems to train on, in their order; what is dropped is added to `selection`.

    evaluations: name -> evaluation problems; training problems that overlap one of them are dropped (find_overlaps).
    num_problems: keeps the first so many of the rest.
    Raises DataError if nothing is left, naming the filter that dropped the last problem.
    """
    kept = list(problems)
    if drops_duplicates:
        kept, counts = deduplicate(kept)
        selection.add_duplicates(counts)
        if not kept:
            raise DataError("task.deduplicate leaves no problem to train on: every statement has conflicting answers")
    for name, evaluation in (evaluations or {}).items():
        excluded, covered = find_overlaps(kept, evaluation)
        selection.counts.setdefault("overlap", {})[name] = {
            "dropped": len(excluded),
            "evaluation_problems": len(evaluation),
            "evaluation_problems_covered": len(covered),
        }
        selection.lines.append(
            f"overlap with {name}: {len(covered)} of {len(evaluation)} evaluation problems are in the training set; "
            f"{len(excluded)} of {len(kept)} training problems overlap and are left out"
        )
        kept = [problem for problem in kept if problem.id not in excluded]
        if not kept:
            raise DataError(f"task.exclude_overlap_with leaves no problem to train on: every problem overlaps {name}")
    return kept[:num_problems]
