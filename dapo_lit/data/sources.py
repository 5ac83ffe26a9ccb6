"""Problems from files: JSONL, Parquet, CSV, or a data set in the layout of the Hugging Face hub.

Columns decide how a row is read:

    problem, answer         one problem; `id` is optional, everything else goes to `meta`
    question, answer        the same; in GSM8K as published the number behind `####` is the answer (`1,080` becomes
                            `1080`), and the text before it goes to `meta["solution"]`
    prompt, reward_model    DAPO-Math-17k as published, see dapo_math.py

Every row is checked before anything is returned; the first one that is wrong is named with file and line.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from dapo_lit.data.dapo_math import DuplicateReport, is_published_schema, published_problems
from dapo_lit.data.fields import FieldChecks
from dapo_lit.data.hub import resolve_files
from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import DataError, Row, read_rows

__all__ = ["DataError", "load_heldout", "load_problems", "load_with_report"]

HELDOUT_SPLITS = ("test", "validation")


def load_problems(path: str, *, split: str = "train", limit: int | None = None) -> list[Problem]:
    """The problems of a file, a folder in the hub's layout, or a hub id (`owner/name[:config[:split]][@revision]`).

    split: chooses among the files of a folder or hub id (one named in the id goes first); a file is read whole.
    limit: keep the first so many problems, after all rows were checked.

    A problem without `id` is called `<file or data set>-<row>`, counted from 0; `limit` does not change it.
    Raises DataError naming file and line for a row that cannot be used, for an id that occurs twice, for data without
    any row, and, naming `task.path`, for a missing file and for a hub that cannot be reached.
    """
    _check_limit(limit)
    return load_with_report(path, split)[0][:limit]


def load_heldout(path: str, *, limit: int | None = None) -> list[Problem]:
    """As load_problems, for problems to evaluate on: the split `test`, or `validation` where there is no `test`.

    A data set that has neither is refused: its training split is evaluated on only if the id names it (`...::train`).
    """
    _check_limit(limit)
    return load_with_report(path, *HELDOUT_SPLITS)[0][:limit]


def load_with_report(path: str, *splits: str) -> tuple[list[Problem], DuplicateReport | None]:
    """All problems of the first of the splits that is there, and what reading dropped.

    The report is None where reading drops nothing: every schema but that of DAPO-Math-17k. Raises as load_problems.
    """
    name, files = resolve_files(path, *splits)
    rows = chain.from_iterable(read_rows(file) for file in files)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: holds no rows; every row needs `problem` and `answer`")
    rows = chain([first], rows)
    checks = FieldChecks(name)
    if is_published_schema(first):
        return published_problems(rows, checks)
    return list(_plain_problems(rows, checks)), None


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"limit counts problems and must be at least 1, got {limit}; leave it null for all of them")


def _plain_problems(rows: Iterable[Row], checks: FieldChecks) -> Iterator[Problem]:
    for number, row in enumerate(rows):
        problem_key = _column(row, "problem", "question")
        answer_key = _column(row, "answer")
        id_key = _column(row, "id")
        meta = {key: value for key, value in row.fields.items() if key not in (problem_key, answer_key, id_key)}
        answer = row.fields.get(answer_key)
        if problem_key.lower() == "question" and isinstance(answer, str) and "####" in answer:
            meta["solution"], _, answer = (part.strip() for part in answer.rpartition("####"))
            answer = answer.replace(",", "")
        yield Problem(
            id=checks.unique_id(row, row.fields.get(id_key), number),
            problem=checks.statement(row, problem_key, row.fields.get(problem_key)),
            answer=checks.answer(row, answer_key, answer),
            meta=meta,
        )


def _column(row: Row, *names: str) -> str:
    """The first of the names that the row has, as the row spells it (`Problem`); the first name if it has none."""
    for name in names:
        if name in row.fields:
            return name
    spelled = {key.lower(): key for key in row.fields}
    return next((spelled[name] for name in names if name in spelled), names[0])
