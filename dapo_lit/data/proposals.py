"""Proposals for data of one's own: the columns of problem and answer, a reward and a prompt."""

import re
from collections.abc import Iterable

from dapo_lit.data.hub import resolve_files
from dapo_lit.data.rows import BadRows, DataError, read_rows
from dapo_lit.data.sources import PATH, is_published_schema

COLUMNS = {
    "problem": ("problem", "question", "prompt", "query", "instruction", "input"),
    "answer": ("answer", "final_answer", "ground_truth", "reference", "solution", "target", "gold", "label", "output"),
}
"""Names by preference; a column of worked solutions is often called `solution`, so `answer` comes before it."""


def find_columns(path: str) -> dict[str, str]:
    """The columns of problem and answer in a file's first row; {} where reading needs no names.

    Raises DataError: there is no column with one of the usual names.
    """
    _, files = resolve_files(path, "train", key=PATH)
    first = next((row for file in files for row in read_rows(file, BadRows())), None)
    if first is None or is_published_schema(first):
        return {}
    spelled = {name.lower(): name for name in first.fields}
    found = {field: next((spelled[w] for w in words if w in spelled), "") for field, words in COLUMNS.items()}
    if lacking := [field for field, name in found.items() if not name]:
        raise DataError(
            f"{path}: which of its columns ({', '.join(first.fields)}) is the {' and the '.join(lacking)}? Name both: "
            "'task.columns={problem: ..., answer: ...}'"
        )
    return found


def propose_reward(answers: Iterable[str]) -> str:
    """`number`, the last number of a response, where every answer is one; else `math`, a line `Answer: ...`."""
    return "number" if all(re.fullmatch(r"[-+]?[\d,]*\.?\d+", answer) for answer in answers) else "math"


def propose_template(extraction: str, is_chat: bool) -> str:
    """The shipped template without worked examples that fits the reward's reading and the policy's tokenizer."""
    fitting = {("answer_line", True): "dapo", ("answer_line", False): "dapo_base", ("boxed", True): "boxed"}
    return fitting.get((extraction, is_chat), "chat" if is_chat else "plain")
