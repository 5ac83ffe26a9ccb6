"""Selects the training problems of a data set and accounts for the others, for the run's output and run.json.

Filters in this order: duplicates, overlap with evaluation sets, difficulty, number of problems.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dapo_lit.data.difficulty import within_difficulty
from dapo_lit.data.duplicates import DuplicateReport, deduplicate
from dapo_lit.data.overlap import find_overlaps
from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import BadRows, DataError


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
            "dropped": len(overlap.overlaps),
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
