"""Selects the training problems of a data set and accounts for the others, for the run's output and run.json.

Filters in this order: duplicates, number of problems.

Each statement is kept once. One that is given with different answers is dropped: which is right is unknown, and a wrong
reference answer rewards wrong responses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablations.errors import DataError
from dapo_lit.data.problem import Problem


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


@dataclass
class SelectionReport:
    """The fate of the problems that were read: `counts` as JSON values, `lines` as text."""

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

    def refuse_empty(self, problems: Sequence[Problem], source: str) -> None:
        """Raises DataError if nothing is left of `source`, with what was dropped on the way."""
        if not problems:
            dropped = "; ".join(self.lines) or "it holds none"
            raise DataError(
                f"{source}: no problem is left ({dropped}); of different answers to one statement none is known to be "
                "right, so it is dropped: correct the answers, or take other data"
            )

    def with_prompts(
        self,
        num_train: int,
        num_heldout: int,
        num_long: int,
        num_long_heldout: int,
        *,
        asked_train: int | None = None,
        asked_heldout: int | None = None,
    ) -> "SelectionReport":
        """A copy with the numbers of prompts that are used and of problems whose prompt was too long.

        asked_train, asked_heldout: `task.num_problems` and `task.num_heldout`; the line says where there are fewer.
        """
        counts = {"train": num_train, "heldout": num_heldout, "long": num_long, "long_heldout": num_long_heldout}
        line = f"problems: {num_train:,} to train on, {num_heldout:,} held out"
        fewer = [
            f"{key} asks for {asked:,} and there are {found:,}"
            for key, asked, found in (
                ("task.num_problems", asked_train, num_train + num_long),
                ("task.num_heldout", asked_heldout, num_heldout + num_long_heldout),
            )
            if asked is not None and 0 < found < asked
        ]
        if fewer:
            line += f" ({'; '.join(fewer)})"
        if num_long or num_long_heldout:
            line += f"; left out, prompt above task.max_prompt_tokens: {num_long:,} and {num_long_heldout:,}"
        return SelectionReport({**self.counts, **counts}, [*self.lines, line])
