"""Duplicate problems: each statement is kept once, and statements with conflicting answers are dropped.

Which of two conflicting answers is right is unknown, and a wrong reference answer rewards wrong responses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dapo_lit.data.problem import Problem


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
