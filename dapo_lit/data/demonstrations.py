"""Prompt / response rows for supervised training, and a majority vote among several responses to one prompt.

A row has `prompt` (the statement, without template) and `response`, in JSONL, Parquet or CSV. Rows with the same prompt
are samples of one question; without a reference answer their majority answer takes its place (self-consistency,
Wang et al. 2022, arXiv 2203.11171).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dapo_lit.data.answer_classes import Equivalent, class_heads
from dapo_lit.data.fields import FieldChecks
from dapo_lit.data.rows import BadRows, DataError, read_rows

KEYS = ("prompt", "response")


@dataclass(frozen=True)
class PromptResponse:
    """One row.

    >>> PromptResponse("7+4=", "#11", "sums.jsonl, line 1").response
    '#11'
    """

    prompt: str
    response: str
    place: str
    """File and line, for messages."""


def load_demonstrations(path: str) -> list[PromptResponse]:
    """Every row of the file. Raises DataError listing the rows without text in `prompt` or `response`."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(
            f"{path}: no such file; set data to a .jsonl, .parquet or .csv file with `prompt` and `response`"
        )
    checks, bad_rows = FieldChecks(file.stem), BadRows()
    rows = []
    for row in read_rows(file, bad_rows):
        with bad_rows:
            prompt, response = (
                checks.statement(row, key, row.fields.get(key), needs="`prompt` and `response`") for key in KEYS
            )
            rows.append(PromptResponse(prompt, response, f"{row.file}, {row.place}"))
    bad_rows.check(len(rows))
    if not rows:
        raise DataError(f"{path}: holds no rows; every row needs `prompt` and `response`")
    return rows


@dataclass(frozen=True)
class Agreement:
    """The rows that a vote kept, and why the others were dropped. Every row is counted once."""

    kept: list[int]
    """Indices of the rows with their prompt's majority answer."""
    num_unanswered: int
    """Rows without an answer."""
    num_outvoted: int
    """Rows with an answer other than the majority's."""
    num_undecided: int
    """Rows with an answer to a prompt without a majority."""
    num_prompts: int
    num_prompts_kept: int

    def __str__(self) -> str:
        return (
            f"{len(self.kept):,} rows of {self.num_prompts_kept:,} of {self.num_prompts:,} prompts kept; dropped: "
            f"{self.num_unanswered:,} without an answer, {self.num_outvoted:,} outvoted, "
            f"{self.num_undecided:,} of prompts without a majority"
        )


def agreeing(
    prompts: Sequence[str],
    answers: Sequence[str | None],
    equivalent: Equivalent,
    *,
    min_samples: int,
    min_frac: float,
) -> Agreement:
    """The rows with the majority answer of their prompt.

    The majority is the largest class of equivalent answers, without a tie, with at least min_samples rows and at least
    min_frac of the prompt's rows (rows without an answer included).

    prompts, answers: one a row. equivalent: see class_heads.
    """
    rows_of: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        rows_of.setdefault(prompt, []).append(index)
    texts = [list(dict.fromkeys(a for i in rows if (a := answers[i]) is not None)) for rows in rows_of.values()]
    kept: list[int] = []
    outvoted = undecided = prompts_kept = 0
    for rows, head in zip(rows_of.values(), class_heads(texts, equivalent), strict=True):
        classes: dict[str, list[int]] = {}
        for index in rows:
            if (answer := answers[index]) is not None:
                classes.setdefault(head[answer], []).append(index)
        sizes = sorted(map(len, classes.values()), reverse=True)
        answered = sum(sizes)
        if sizes and sizes[0] >= max(min_samples, min_frac * len(rows)) and sizes[1:2] != sizes[:1]:
            kept += next(members for members in classes.values() if len(members) == sizes[0])
            prompts_kept += 1
            outvoted += answered - sizes[0]
        else:
            undecided += answered
    unanswered = sum(answer is None for answer in answers)
    return Agreement(sorted(kept), unanswered, outvoted, undecided, len(rows_of), prompts_kept)
