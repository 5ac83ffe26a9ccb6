"""Selects the training problems of a data set and accounts for the others, for the run's output and run.json.

Filters in this order: duplicates, overlap with evaluation sets, difficulty, number of problems.

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
from dapo_lit.data.rows import BadRows, DataError


@dataclass
class DuplicateReport:
    """What became of the rows of a data set."""

    num_rows: int
    num_repeated: int = 0
    """Rows whose statement and answer repeat an earlier row exactly."""
    num_kept: int = 0
    restated: list[tuple[str, str]] = field(default_factory=list)
    """(id kept, id dropped): the same statement up to blanks and case, with the same answer."""
    conflicts: list[list[tuple[str, str]]] = field(default_factory=list)
    """(id, answer) of the problems that share a statement but not the answer, by statement; all are dropped."""
    num_without_template: int = 0
    """Distinct rows in the schema of DAPO-Math-17k without DAPO's template; the whole prompt is the statement."""

    def counts(self) -> dict[str, int]:
        return {
            "rows": self.num_rows,
            "repeated": self.num_repeated,
            "restated": len(self.restated),
            "conflicting": sum(map(len, self.conflicts)),
        }

    def __str__(self) -> str:
        text = (
            f"{self.num_rows:,} rows, {self.num_kept:,} problems kept; {self.num_repeated:,} exact repetitions; "
            f"{len(self.restated):,} restated (blanks or case differ); "
            f"{sum(map(len, self.conflicts)):,} dropped: {len(self.conflicts):,} statements with conflicting answers"
        )
        if self.num_without_template:
            text += f"; {self.num_without_template:,} prompts without DAPO's template, used whole"
        return text


def statement_key(problem: Problem) -> tuple[str, ...]:
    """Equal for problems with the same statement, and the same messages before it, up to blanks and case."""
    texts = (*(message["content"] for message in problem.before), problem.problem)
    return tuple("".join(text.split()).lower() for text in texts)


def deduplicate(problems: Sequence[Problem]) -> tuple[list[Problem], DuplicateReport]:
    """Each statement once, the first of its kind, and none that is given with different answers.

    Statements that differ only in blanks and case are the same; punctuation and signs make them different.
    """
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        groups.setdefault(statement_key(problem), []).append(problem)
    report = DuplicateReport(num_rows=len(problems))
    kept: list[Problem] = []
    for first, *others in groups.values():
        group = [first, *others]
        if len({problem.answer.strip() for problem in group}) > 1:
            report.conflicts.append([(problem.id, problem.answer) for problem in group])
            continue
        kept.append(first)
        wordings = {first.problem}
        for problem in others:
            if problem.problem in wordings:
                report.num_repeated += 1
            else:
                report.restated.append((first.id, problem.id))
                wordings.add(problem.problem)
    report.num_kept = len(kept)
    return kept, report


# Letters and digits, or one character of a script written without blanks (Chinese, Japanese).
WORD = re.compile(r"[぀-ヿ一-鿿]|[^\W_぀-ヿ一-鿿]+")
# Not part of a word: a LaTeX command, and the comma in 1,760.
NOISE = re.compile(r"\\[a-zA-Z]+|(?<=\d),(?=\d{3}(?!\d))")


@dataclass
class OverlapReport:
    """Training problems that overlap an evaluation set."""

    num_train: int
    num_evaluation: int
    excluded: set[str] = field(default_factory=set)
    """Ids of the overlapping training problems."""
    covered: set[str] = field(default_factory=set)
    """Ids of the evaluation problems that at least one training problem overlaps."""

    def without_overlap(self, train: Sequence[Problem]) -> list[Problem]:
        """The training problems that do not overlap."""
        return [problem for problem in train if problem.id not in self.excluded]

    def __str__(self) -> str:
        share = f" ({len(self.covered) / self.num_evaluation:.0%})" if self.num_evaluation else ""
        return (
            f"{len(self.covered)} of {self.num_evaluation} evaluation problems{share} are in the training set; "
            f"{len(self.excluded)} of {self.num_train} training problems overlap"
        )


def find_overlaps(
    train: Sequence[Problem], evaluation: Sequence[Problem], *, n: int = 10, threshold: float = 0.5
) -> OverlapReport:
    """The training problems that contain more than `threshold` of the n-grams of an evaluation problem.

    Only the evaluation set is indexed: time grows with the training set, memory with the evaluation set. A problem of
    fewer than n words counts as a single n-gram.
    """
    grams = [ngram_hashes(problem.problem, n) for problem in evaluation]
    index: dict[int, list[int]] = {}
    for number, hashes in enumerate(grams):
        for value in hashes:
            index.setdefault(value, []).append(number)
    report = OverlapReport(num_train=len(train), num_evaluation=len(evaluation))
    for problem in train:
        shared = Counter(number for value in ngram_hashes(problem.problem, n) for number in index.get(value, ()))
        above = {evaluation[number].id for number, count in shared.items() if count / len(grams[number]) > threshold}
        if above:
            report.excluded.add(problem.id)
            report.covered |= above
    return report


def ngram_hashes(text: str, n: int) -> set[int]:
    """Hashes of the distinct n-grams of words; comparable within one process only."""
    words = WORD.findall(NOISE.sub(lambda match: "" if match[0] == "," else " ", text).lower())
    if not words:
        return set()
    return {hash(tuple(words[start : start + n])) for start in range(max(1, len(words) - n + 1))}


LEVEL = re.compile(r"(?:level\s*)?(-?\d+(?:\.\d+)?)", re.IGNORECASE)


def within_difficulty(
    problems: Sequence[Problem], key: str, low: float | None = None, high: float | None = None
) -> tuple[list[Problem], list[Problem]]:
    """(kept, dropped): kept are the problems with low <= meta[key] <= high; None leaves a side open.

    A value is a number or a text such as MATH's "Level 5"; a problem without one (MATH's "Level ?") is dropped.
    Raises DataError if no problem has the key.
    """
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


@dataclass
class SelectionReport:
    """What became of the problems that were read: `counts` as JSON values, `lines` as text."""

    counts: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def add_bad_rows(self, bad_rows: BadRows) -> None:
        if bad_rows.count:
            self.counts["bad_rows"] = bad_rows.count
            self.lines.append(
                f"bad rows: {bad_rows.count:,} skipped (task.skip_bad_rows), the first: {bad_rows.first[0]}"
            )

    def add_duplicates(self, report: DuplicateReport) -> None:
        self.counts["duplicates"] = report.counts()
        self.lines.append(f"duplicates: {report}")

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
    difficulty: tuple[str, float | None, float | None] | None = None,
    num_problems: int | None = None,
) -> list[Problem]:
    """The problems to train on, in their order; what is dropped is added to `selection`.

    evaluations: name -> evaluation problems; training problems that overlap one of them are dropped (find_overlaps).
    difficulty: (key of `meta`, low, high), see within_difficulty. num_problems: keeps the first so many of the rest.
    Raises DataError if nothing is left, naming the filter that dropped the last problem.
    """
    kept = list(problems)
    if drops_duplicates:
        kept, report = deduplicate(kept)
        selection.add_duplicates(report)
        _refuse_empty(kept, "task.deduplicate", "every statement has conflicting answers")
    for name, evaluation in (evaluations or {}).items():
        overlap = find_overlaps(kept, evaluation)
        kept = overlap.without_overlap(kept)
        selection.counts.setdefault("overlap", {})[name] = {
            "dropped": len(overlap.excluded),
            "evaluation_problems": overlap.num_evaluation,
            "evaluation_problems_covered": len(overlap.covered),
        }
        selection.lines.append(f"overlap with {name}: {overlap} and are left out")
        _refuse_empty(kept, "task.exclude_overlap_with", f"every problem overlaps {name}")
    if difficulty is not None:
        key, low, high = difficulty
        kept, outside = within_difficulty(kept, key, low, high)
        selection.counts["outside_difficulty"] = len(outside)
        bounds = f"{'-inf' if low is None else f'{low:g}'} <= {key} <= {'inf' if high is None else f'{high:g}'}"
        selection.lines.append(f"difficulty: {len(outside):,} problems outside {bounds} are left out")
        _refuse_empty(kept, "task.difficulty", f"no problem has {bounds}")
    return kept[:num_problems]


def _refuse_empty(kept: Sequence[Problem], key: str, reason: str) -> None:
    if not kept:
        raise DataError(f"{key} leaves no problem to train on: {reason}")
