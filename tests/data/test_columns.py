"""Data with columns of other names, chats as problems, and files as `datasets` saves them."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import DataError
from dapo_lit.data.sources import load_heldout, load_with_selection

COLUMNS = {"problem": "prompt", "answer": "solution"}
CHAT = [
    {"role": "system", "content": "Answer with a number."},
    {"role": "user", "content": "2 + 3?"},
]


def written(file: Path, *rows: dict) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def problems(path: str, columns: dict | None = None):
    return load_with_selection(path, "train", columns=columns)[0]


@pytest.mark.parametrize(
    ("row", "columns", "expected"),
    [
        (
            {"prompt": "2 + 3?", "solution": 5, "uid": "a", "level": 2},
            {**COLUMNS, "id": "uid"},
            Problem("a", "2 + 3?", "5", {"level": 2}),
        ),
        (
            {"question": "2 + 3?", "target": {"value": "5"}},
            {"answer": "target.value"},
            Problem("sums-0", "2 + 3?", "5", {"target": {"value": "5"}}),
        ),
        ({"prompt": CHAT, "solution": "5"}, COLUMNS, Problem("sums-0", "2 + 3?", "5", before=tuple(CHAT[:1]))),
    ],
    ids=["renamed, the others kept", "a dot into an object", "a chat"],
)
def test_columns_are_read_under_their_names(tmp_path, row, columns, expected):
    assert problems(written(tmp_path / "sums.jsonl", row), columns) == [expected]


def test_a_file_with_the_usual_names_is_read_whatever_the_columns_say(tmp_path):
    path = written(tmp_path / "heldout.jsonl", {"problem": "2 + 3?", "answer": "5"})
    assert load_heldout(path, COLUMNS)[0].answer == "5"


@pytest.mark.parametrize(
    ("chat", "reason"),
    [
        ([*CHAT, {"role": "assistant", "content": "5"}], "must end with a message of the user"),
        ([], "must end with a message of the user"),
        (["2 + 3?"], "a list of {"),
        ([{"role": "user", "content": ["2 + 3?"]}], "a list of {"),
        ([{"role": "tool", "content": "5"}, *CHAT], "a list of {"),
    ],
)
def test_a_chat_that_cannot_be_answered_is_refused(tmp_path, chat, reason):
    with pytest.raises(DataError, match=reason):
        problems(written(tmp_path / "chats.jsonl", {"problem": chat, "answer": "5"}))


def test_arrow_files_are_read_as_datasets_saves_them(tmp_path):
    """`DatasetDict.save_to_disk` writes a folder for each split with streams of record batches."""
    for split, numbers in (("train", [1, 2]), ("test", [3])):
        (tmp_path / "saved" / split).mkdir(parents=True)
        table = pa.table({"prompt": [f"{n} + {n}?" for n in numbers], "solution": [2 * n for n in numbers]})
        with pa.ipc.new_stream(tmp_path / "saved" / split / "data-00000-of-00001.arrow", table.schema) as stream:
            stream.write_table(table)
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert [p.answer for p in problems(str(tmp_path / "saved"), COLUMNS)] == ["2", "4"]
    assert [p.answer for p in load_heldout(str(tmp_path / "saved"), COLUMNS)] == ["6"]
    (tmp_path / "broken.arrow").write_bytes(b"no arrow")
    with pytest.raises(DataError, match=r"broken\.arrow"):
        problems(str(tmp_path / "broken.arrow"))
