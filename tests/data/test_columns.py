"""Data with columns of other names, chats as problems, and files as `datasets` saves them."""

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


def problems(path: str, columns: dict | None = None):
    return load_with_selection(path, "train", columns=columns)[0]


def test_columns_are_read_under_their_names_also_within_an_object_and_the_others_are_kept(write_jsonl):
    path = write_jsonl({"prompt": CHAT, "target": {"value": 5}, "uid": "a", "level": 2})
    found = problems(path, {"problem": "prompt", "answer": "target.value", "id": "uid"})
    meta = {"target": {"value": 5}, "level": 2}
    assert found == [Problem("a", "2 + 3?", "5", meta, before=tuple(CHAT[:1]))]


def test_a_held_out_file_with_the_usual_names_is_read_whatever_the_columns_say(write_jsonl):
    assert load_heldout(write_jsonl({"problem": "2 + 3?", "answer": "5"}), COLUMNS)[0].answer == "5"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"problem": "promt"}, r"line 1: has no `promt`; did you mean `prompt`\?"),
        ({"problem": "prompt", "answer": "solutoin"}, r"line 1: has no `solutoin`; did you mean `solution`\?"),
        ({"answer": "target.valu"}, "line 1: has no `target.valu`"),
        ({"id": "uidd"}, r"task.columns: no row has `uidd`; did you mean `uid`\?"),
    ],
)
def test_a_column_that_is_not_there_is_an_error_also_where_the_usual_one_is(write_jsonl, columns, said):
    row = {"problem": "1 + 1?", "answer": "2", "prompt": "2 + 3?", "solution": "5", "target": {"value": 1}, "uid": "a"}
    with pytest.raises(DataError, match=said) as refused:
        problems(write_jsonl(row, row | {"uid": "b"}), columns)
    assert "\n" not in str(refused.value)


def test_a_row_without_the_named_column_is_not_read_from_the_usual_one(write_jsonl):
    with pytest.raises(DataError, match=r"line 2: has no `prompt`"):
        problems(
            write_jsonl({"prompt": "2 + 3?", "answer": "5"}, {"problem": "1?", "answer": "1"}), {"problem": "prompt"}
        )


def test_a_null_is_said_to_be_one(write_jsonl):
    with pytest.raises(DataError, match="line 1: `answer` is null"):
        problems(write_jsonl({"problem": "2 + 3?", "answer": None}))


@pytest.mark.parametrize(
    "chat",
    [
        [*CHAT, {"role": "assistant", "content": "5"}],
        [],
        ["2 + 3?"],
        [{"role": "user", "content": ["2 + 3?"]}],
        [{"role": "tool", "content": "5"}, *CHAT],
    ],
)
def test_a_chat_that_cannot_be_answered_is_refused(write_jsonl, chat):
    with pytest.raises(DataError, match=r"line 1: .*problem"):
        problems(write_jsonl({"problem": chat, "answer": "5"}))


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


def test_data_without_a_column_of_answers_are_read_for_a_reward_that_needs_none(write_jsonl):
    bare = [{"prompt": CHAT, "level": 2}, {"prompt": "3 + 4?"}]
    path = write_jsonl(*bare)
    with pytest.raises(DataError, match="has no `answer`"):
        problems(path)
    found, _ = load_with_selection(path, "train", columns={}, answers_optional=True)
    assert [(problem.problem, problem.answer) for problem in found] == [("2 + 3?", ""), ("3 + 4?", "")]
    with pytest.raises(DataError, match="line 3: has `answer`"):
        load_with_selection(write_jsonl(*bare, {"prompt": "1?", "answer": "1"}), "train", answers_optional=True)
    path = write_jsonl({"prompt": "1?", "answer": "1"}, {"prompt": "2?"})
    with pytest.raises(DataError, match="line 2: has no `answer`"):
        load_with_selection(path, "train", answers_optional=True)
