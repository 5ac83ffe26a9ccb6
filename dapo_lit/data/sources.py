"""Problems from files: JSONL, Parquet, CSV, or a data set in the layout of the Hugging Face hub.

The columns decide how a row is read:

    problem, answer         one problem; `id` is optional, everything else goes to `meta`
    others                  as `columns` names them (task.columns)
    question, answer        the same, as in GSM8K
    prompt, solution        the same, as in TRL's data; also `answer` or `ground_truth`
    prompt, reward_model    DAPO-Math-17k as published, with `extra_info.index` as the id of a row that has no `id`, and
                            verl's other data (AIME with every problem 32 times). 1.8 million rows, about 100 copies of
                            each problem, all with the prompt template around the statement: it is taken off (a
                            template that asks for no form of the answer puts it back), and duplicates are dropped

A problem may be a list of chat messages that ends with the user's. Of an answer with text and `####` before its end, as
in GSM8K, the end is the answer (`1,080` becomes `1080`), and the text goes to `meta["worked_solution"]`.
`read_problem` does this for every schema.

Every row is checked before anything is returned; one message lists the bad rows with file and line.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from itertools import chain

from ablations.errors import suggestion
from dapo_lit.data.hub import resolve_files
from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import BadRows, DataError, Row, RowError, number_text, read_rows
from dapo_lit.data.selection import SelectionReport, deduplicate
from dapo_lit.data.templates import PromptTemplate

__all__ = ["DataError", "load_heldout", "load_problems", "load_with_selection"]

SHOWN_CHARS = 60
"""Characters of a value that a message quotes."""


class FieldChecks:
    """The checks of one data set. Remembers the ids seen so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._place_of_id: dict[str, str] = {}

    def statement(self, row: Row, key: str, value: object, *, needs: str = "`problem` and `answer`") -> str:
        """The text, unchanged; RowError if it is absent, not text, or blank. needs: the keys that every row has."""
        if value is None:
            raise _absent(row, key, needs)
        if not isinstance(value, str):
            raise row.error(f"`{key}` is {_kind(value)}, not text")
        if not value.strip():
            raise row.error(f"`{key}` is empty; write the text or delete the row")
        return _encodable(row, key, value)

    def chat(self, row: Row, key: str, messages: list[object]) -> tuple[str, tuple[Mapping[str, str], ...]]:
        """The text of the last message, which must be the user's, and the messages before it."""
        read: list[Mapping[str, str]] = []
        for message in messages:
            role, content = (
                (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
            )
            if not isinstance(content, str) or role not in ("system", "user", "assistant"):
                raise row.error(f'`{key}` must be text, or a list of {{"role": "user", "content": "..."}}')
            read.append({"role": str(role), "content": _encodable(row, key, content)})
        if not read or read[-1]["role"] != "user":
            raise row.error(f"`{key}` must end with a message of the user, which the policy answers")
        return read[-1]["content"], tuple(read[:-1])

    def answer(self, row: Row, key: str, value: object, *, needs: str = "`problem` and `answer`") -> str:
        """The answer as text without surrounding blanks; a number becomes the text of its value, 72.0 the text 72."""
        if value is None:
            raise _absent(row, key, needs)
        if isinstance(value, str):
            text = _encodable(row, key, value.strip())
        elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf:
            text = number_text(value)
        else:
            raise row.error(f"`{key}` is {_kind(value)}; write the answer as text or as a number")
        if not text:
            raise row.error(f"`{key}` is empty; write the answer or delete the row")
        return text

    def unique_id(self, row: Row, value: object, number: int) -> str:
        """The row's id, or one made from the data set's name and the row's number (from 0)."""
        if value is None:
            identity = f"{self.name}-{number}"
        elif isinstance(value, str) and value.strip():
            identity = _encodable(row, "id", value)
        elif isinstance(value, int) and not isinstance(value, bool):
            identity = str(value)
        else:
            raise row.error(f"`id` is {_kind(value)}; write a text or an integer, or leave `id` out of every row")
        place = f"{row.file.name}, {row.place}"
        first = self._place_of_id.setdefault(identity, place)
        if first != place:
            raise row.error(
                f"the id {identity!r} is already used at {first}; ids must differ (leave `id` out to number rows)"
            )
        return identity


def _absent(row: Row, key: str, needs: str) -> RowError:
    if key in row.fields:
        return row.error(f"`{key}` is null; write a value or delete the row")
    hint = suggestion(key, [str(name) for name in row.fields], "`{}`")
    return row.error(f"has no `{key}`; {hint}; every row needs {needs}")


def _encodable(row: Row, key: str, text: str) -> str:
    """The text; RowError for a lone surrogate (JSON's "\\ud800"), which no tokenizer and no file accepts."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise row.error(f"`{key}` has a lone surrogate at character {error.start + 1}; remove it") from None
    return text


def _kind(value: object) -> str:
    """The value as JSON has it, shortened.

    >>> _kind(True), _kind(""), _kind({"text": [1.5]})
    ('true', '""', '{"text": [1.5]}')
    """
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."


PATH = "task.path"
"""The config key that messages name unless told otherwise."""


def is_published_schema(row: Row) -> bool:
    """True if the columns are those of DAPO-Math-17k as published."""
    return "prompt" in row.fields and "reward_model" in row.fields


def published_problems(
    rows: Iterable[Row], checks: FieldChecks, bad_rows: BadRows
) -> tuple[list[Problem], dict[str, int]]:
    """The distinct problems of rows in the published schema, in order of first occurrence, and their counts."""
    prefix, suffix = PromptTemplate.load("dapo").around_problem()
    seen: set[tuple[object, ...]] = set()
    problems: list[Problem] = []
    num_good = 0
    for row in rows:
        with bad_rows:
            prompt, ground_truth = row.fields.get("prompt"), _part(row, "reward_model").get("ground_truth")
            if not isinstance(prompt, list):
                raise row.error('`prompt` must be a list of chat messages that ends with {"role": "user", ...}')
            # Most rows end here: a repetition needs no further checks because its first occurrence passed them all.
            texts = tuple(message.get("content") if isinstance(message, Mapping) else None for message in prompt)
            repeats = all(isinstance(part, str | int | float) for part in (*texts, ground_truth))
            if repeats and (*texts, ground_truth) in seen:
                num_good += 1
                continue
            *before, last = prompt or [None]
            text = last.get("content") if isinstance(last, Mapping) else None
            instruction = ("", "")
            if isinstance(text, str) and text.startswith(prefix) and text.endswith(suffix):
                instruction = (prefix, suffix)
                prompt = [*before, {**last, "content": text.removeprefix(prefix).removesuffix(suffix)}]
            info = dict(_part(row, "extra_info")) if row.fields.get("extra_info") is not None else {}
            index = info.pop("index", None)
            id_key = _column(row, None, "id")
            others = {key: row.fields[key] for key in row.fields if key not in (*PUBLISHED, id_key)}
            problem = read_problem(
                row,
                checks,
                problem=("prompt", prompt),
                answer=("reward_model.ground_truth", ground_truth),
                id_key=id_key,
                # A number is an index into this data set only; a text (DAPO's UUIDs) is unique by itself.
                index=f"{checks.name}-{index}" if isinstance(index, int) else index,
                number=len(problems),
                meta={key: value for key, value in (others | info).items() if value is not None},
                instruction=instruction,
            )
            problems.append(problem)
            if repeats:
                seen.add((*texts, ground_truth))
            num_good += 1
    kept, counts = deduplicate(problems)
    return kept, counts | {"rows": num_good, "repeated": counts["repeated"] + num_good - len(problems)}


PUBLISHED = ("prompt", "reward_model", "extra_info")
"""The columns of DAPO-Math-17k and of verl's other data that are read; the others are kept with the problem."""
_WHOLE_FLOAT = re.compile(r"\s*(-?[0-9]+)\.0+\s*")
_NUMBER_WITH_COMMAS = re.compile(r"[-+$]*[0-9][0-9,]*(?:\.[0-9]+)?")


def read_problem(
    row: Row,
    checks: FieldChecks,
    *,
    problem: tuple[str, object],
    answer: tuple[str, object],
    id_key: str,
    number: int,
    meta: Mapping[str, object],
    index: object = None,
    needs: str = "`problem` and `answer`",
    instruction: tuple[str, str] = ("", ""),
    without_answer: bool = False,
) -> Problem:
    """The one place where a row becomes a problem, whichever schema or `task.columns` says where its parts are.

    Chat messages before the last stay with the problem. Of an answer that is a solution as GSM8K has them, the text
    after `####` is the answer, and what stands before it is kept as `worked_solution`: functions written for TRL call
    the reference `solution`.

    problem, answer: the name of the column and its value. The id is the column `id_key`, else `index`, which a schema
    of its own may have, else made from the row's `number`.
    """
    identity = row.value(id_key)
    problem_key, statement = problem
    answer_key, wanted = answer
    before: tuple[Mapping[str, str], ...] = ()
    if isinstance(statement, list):
        statement, before = checks.chat(row, problem_key, statement)
    if isinstance(wanted, str) and row.file.suffix.lower() == ".csv" and (whole := _WHOLE_FLOAT.fullmatch(wanted)):
        wanted = whole[1]  # a cell has no type: what is a float in JSON is one here
    if isinstance(wanted, str) and "####" in wanted:
        solution, _, after = (part.strip() for part in wanted.rpartition("####"))
        if solution and after:
            wanted = after.replace(",", "") if _NUMBER_WITH_COMMAS.fullmatch(after) else after
            meta = {"worked_solution": solution, **meta}
    return Problem(
        problem=checks.statement(row, problem_key, statement, needs=needs),
        answer="" if without_answer else checks.answer(row, answer_key, wanted, needs=needs),
        id=checks.unique_id(row, index if identity is None else identity, number),
        meta=meta,
        before=before,
        instruction=instruction,
    )


def _part(row: Row, key: str) -> Mapping[str, object]:
    value = row.fields.get(key)
    if not isinstance(value, Mapping):
        raise row.error(f"`{key}` must be an object, as in DAPO-Math-17k (reward_model.ground_truth, extra_info.index)")
    return value


def load_problems(path: str, *, split: str = "train", limit: int | None = None, key: str = PATH) -> list[Problem]:
    """The problems of a file, a folder in the hub's layout, or a hub id (`owner/name[:config[:split]][@revision]`).

    split: chooses among the files of a folder or hub id (a split named in the id wins); a single file is read whole.
    limit: return only the first so many problems; all rows are checked all the same.

    A problem without `id` is called `<file or data set>-<row>`, counted from 0; `limit` does not change it.
    Raises DataError listing file and line of the rows that cannot be used (an id that occurs twice among them), for
    data without rows, and, naming the config key `key`, for a missing file; HubError, for a
    hub that refuses or cannot be reached.
    """
    return load_with_selection(path, split, key=key)[0][:limit]


def load_heldout(
    path: str, columns: Mapping[str, str] | None = None, key: str = PATH, *, answers_optional: bool = False
) -> list[Problem]:
    """Like load_problems, for problems to evaluate on: the split `test`, or `validation` where there is no `test`.

    A data set with neither is refused: its training split is used only if the id names it (`...::train`).
    """
    found, _ = load_with_selection(
        path, "test", "validation", columns=columns, key=key, heldout=True, answers_optional=answers_optional
    )
    return found


def load_benchmark_problems(path: str, key: str) -> list[Problem]:
    """Like load_heldout, and `train` where a data set has no other split: many a benchmark has only that."""
    return load_with_selection(path, "test", "validation", "train", key=key, heldout=True)[0]


def load_with_selection(
    path: str,
    *splits: str,
    columns: Mapping[str, str] | None = None,
    key: str = PATH,
    heldout: bool = False,
    answers_optional: bool = False,
) -> tuple[list[Problem], SelectionReport]:
    """All problems of the first of the splits that exists, and what reading left out.

    columns: names of the columns `problem`, `answer` and `id` where the data have others; a dot leads into an object.
        A name that a row lacks is an error, even where the row has the usual one. None: no message mentions
        task.columns.
    heldout: the usual names are read too where the data have none of `columns`.
    answers_optional: data without a column of answers have empty ones, for a reward function that needs none.
    """
    name, files = resolve_files(path, *splits, key=key)
    bad_rows, selection = BadRows(), SelectionReport()
    rows = chain.from_iterable(read_rows(file, bad_rows) for file in files)
    checks, first = FieldChecks(name), next(rows, None)
    if first is None:
        bad_rows.check(0)
        raise DataError(f"{path}: holds no rows; every row needs `problem` and `answer`")
    rows = chain([first], rows)
    named = {field: name for field, name in (columns or {}).items() if first.value(name) is not None}
    if heldout and columns and not named:
        columns = {}  # the names are those of task.path; held-out problems may have the usual ones
    elif lacking := next((name for field, name in (columns or {}).items() if field not in (*named, "id")), None):
        raise _absent(first, lacking, "the columns that task.columns names")
    if is_published_schema(first) and not columns:
        problems, counts = published_problems(rows, checks, bad_rows)
        bad_rows.check(counts["rows"])
        selection.add_duplicates(counts)
    else:
        problems = _plain_problems(rows, checks, bad_rows, columns, answers_optional)
        bad_rows.check(len(problems))
    selection.refuse_empty(problems, f"{key}={path}")
    return problems, selection


def _plain_problems(
    rows: Iterable[Row],
    checks: FieldChecks,
    bad_rows: BadRows,
    columns: Mapping[str, str] | None,
    answers_optional: bool,
) -> list[Problem]:
    problems: list[Problem] = []
    without: bool | None = None  # None: no row was read
    fields: dict[str, None] = {}
    has_id = False
    own = columns or {}
    needs = f"`{own.get('problem', 'problem')}` and `{own.get('answer', 'answer')}`"
    if columns is not None and not columns:
        needs += ", or task.columns={problem: ..., answer: ...} names yours"
    for row in rows:
        with bad_rows:
            problem_key = _column(row, own.get("problem"), "problem", "question", "prompt")
            trl = ("solution", "ground_truth") if problem_key == "prompt" and not own else ()
            answer_key = _column(row, own.get("answer"), "answer", *trl)
            id_key = _column(row, own.get("id"), "id")
            if without is None:
                without = answers_optional and not own.get("answer") and answer_key not in row.fields
            if without and answer_key in row.fields:
                raise row.error(f"has `{answer_key}`, and the first row has none; give it to all rows or to none")
            problem = read_problem(
                row,
                checks,
                problem=(problem_key, row.value(problem_key)),
                answer=(answer_key, row.value(answer_key)),
                id_key=id_key,
                number=len(problems),
                meta={k: value for k, value in row.fields.items() if k not in (problem_key, answer_key, id_key)},
                needs=needs,
                without_answer=without,
            )
            problems.append(problem)
            has_id |= row.value(id_key) is not None
            fields.update(dict.fromkeys(row.fields))
    if own.get("id") and problems and not has_id:
        raise DataError(f"task.columns: no row has `{own['id']}`; {suggestion(own['id'], fields, '`{}`')}")
    return problems


def _column(row: Row, own: str | None, *names: str) -> str:
    """The user's own name, whether the row has it or not; else the first that it has, as it spells it (`Problem`)."""
    if own is not None:
        return own
    for name in names:
        if row.value(name) is not None:
            return name
    spelled = {key.lower(): key for key in row.fields}
    return next((spelled[name] for name in names if name in spelled), names[0])
