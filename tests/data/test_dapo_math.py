"""DAPO-Math-17k as published gives the problems it holds, once each; duplicates and conflicts are reported."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dapo_lit.data.problem import Problem
from dapo_lit.data.selection import deduplicate
from dapo_lit.data.sources import DataError, load_problems, load_with_selection
from dapo_lit.data.templates import PromptTemplate

DAPO = PromptTemplate.load("dapo")


def published(statement: str, answer: object, index: object) -> dict:
    """A row as DAPO-Math-17k has it."""
    return {
        "data_source": "math_dapo",
        "prompt": DAPO.render(statement),
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


def write_parquet(file: Path, rows: list[dict]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), file)
    return str(file)


def test_the_template_is_stripped_and_repeated_rows_are_read_once(tmp_path):
    rows = [published("What is 2 + 3?", "5", "u-1"), published("What is 4 * 2?", "8", "u-2")]
    path = write_parquet(tmp_path / "train.parquet", rows * 100)
    problems, selection = load_with_selection(path, "train")
    others = {"data_source": "math_dapo", "ability": "MATH"}
    around = DAPO.around_problem()
    assert problems == [
        Problem("u-1", "What is 2 + 3?", "5", others, instruction=around),
        Problem("u-2", "What is 4 * 2?", "8", others, instruction=around),
    ]
    assert selection.counts == {"duplicates": {"rows": 200, "repeated": 198, "restated": 0, "conflicting": 0}}


@pytest.mark.parametrize("name", ["chat", "dapo", "boxed"])
def test_a_template_that_asks_for_nothing_keeps_the_instruction_of_the_data_and_others_replace_it(tmp_path, name):
    path, template = write_parquet(tmp_path / "d.parquet", [published("2 + 3?", "5", "u")]), PromptTemplate.load(name)
    ((problem,), _) = load_with_selection(path, "train")
    statement, before = template.asked(problem)
    # verl sends the messages as they are in the file.
    sent = published("2 + 3?", "5", "u")["prompt"]
    assert template.chat(statement, before) == (sent if name != "boxed" else template.render("2 + 3?"))


def test_the_marked_duplicates_and_conflicts_of_the_real_set_are_found_and_no_others(data_file):
    problems = load_problems(str(data_file("dapo_math_17k.jsonl")))
    kept, counts = deduplicate(problems)
    marked = {p.id for p in problems if p.meta["dup_of"] or p.meta["conflict"]}
    assert {p.id for p in problems} - {p.id for p in kept} == marked
    assert counts["conflicting"] == sum(bool(p.meta["conflict"]) for p in problems)


def test_a_prompt_without_the_template_is_the_statement(tmp_path):
    row = published("", 5, 7)
    row["extra_info"]["raw_problem"] = "..."
    row["prompt"] = [{"role": "user", "content": "What is 2 + 3?"}]
    (problem,) = load_problems(write_parquet(tmp_path / "train.parquet", [row]))
    # an index is no id of its own outside its data set
    meta = {"data_source": "math_dapo", "ability": "MATH", "raw_problem": "..."}
    assert problem == Problem("train-7", "What is 2 + 3?", "5", meta)


SHOTS = [
    {"role": "system", "content": "Put the result after ####."},
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": "#### 2"},
]
NAMED = {"problem": "prompt", "answer": "reward_model.ground_truth", "id": "uid"}


@pytest.mark.parametrize("before", [[], SHOTS[:1], SHOTS])
@pytest.mark.parametrize("answer", [5, "5", "2 + 3 = 5\n#### 5"])
def test_a_row_is_one_problem_whether_its_schema_or_task_columns_says_where_its_parts_are(tmp_path, before, answer):
    row = published("", answer, "u-1") | {"uid": "u-1"}
    row["prompt"] = [*before, {"role": "user", "content": "2 + 3?"}]
    (tmp_path / "train.jsonl").write_text(json.dumps(row))
    path = str(tmp_path / "train.jsonl")
    ((one,), _), ((other,), _) = load_with_selection(path, "train"), load_with_selection(path, "train", columns=NAMED)
    assert (one.id, one.problem, one.answer, one.before) == ("u-1", "2 + 3?", "5", tuple(before))
    assert (one.id, one.problem, one.answer, one.before) == (other.id, other.problem, other.answer, other.before)
    assert one.meta.get("worked_solution") == other.meta.get("worked_solution")


def in_base(number: int) -> dict:
    row = published("", "12" if number == 10 else "100", number)
    system = {"role": "system", "content": f"Base {number}."}
    return {**row, "prompt": [system, {"role": "user", "content": "11 + 1?"}]}


def test_one_question_after_two_system_messages_is_two_problems(tmp_path):
    problems, selection = load_with_selection(
        write_parquet(tmp_path / "train.parquet", [in_base(10), in_base(2), in_base(2)]), "train"
    )
    assert [(p.before[0]["content"], p.answer) for p in problems] == [("Base 10.", "12"), ("Base 2.", "100")]
    assert selection.counts["duplicates"]["repeated"] == 1


def test_the_id_of_a_row_comes_before_its_index_and_is_checked_like_any_other(tmp_path):
    rows = [published("2 + 3?", "5", 7) | {"id": "x"}, published("1 + 1?", "2", 8) | {"id": None}]
    problems = load_problems(write_parquet(tmp_path / "train.parquet", rows))
    assert [(problem.id, "id" in problem.meta) for problem in problems] == [("x", False), ("train-8", False)]
    with pytest.raises(DataError, match="row 2: the id 'x'"):
        load_problems(write_parquet(tmp_path / "twice.parquet", [row | {"id": "x"} for row in rows]))


def test_a_file_of_which_nothing_is_left_is_refused_with_what_was_dropped(tmp_path):
    rows = [published("x?", answer, answer) for answer in ("1", "2")]
    with pytest.raises(DataError, match=r"task\.path=.*2 rows.* 2 with conflicting answers"):
        load_problems(write_parquet(tmp_path / "train.parquet", rows))


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("prompt", "What is 2 + 3?", "`prompt`"),
        ("prompt", [{"role": "assistant", "content": "5"}], "`prompt`"),
        ("reward_model", {"style": "rule"}, "`reward_model.ground_truth`"),
        ("extra_info", 3, "`extra_info`"),
        ("extra_info", {"index": "u-1"}, "'u-1'"),
    ],
)
def test_a_bad_row_of_the_published_schema_is_named(tmp_path, key, value, named):
    file = tmp_path / "train.jsonl"
    rows = [published("What is 1 + 1?", "2", "u-1"), {**published("What is 2 + 3?", "5", "u-2"), key: value}]
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match=f"train.jsonl, line 2: .*{named}"):
        load_problems(str(file))


@pytest.mark.parametrize(
    ("rows", "kept", "repeated", "restated", "conflicting"),
    [
        ([("2 - 3?", "-1"), ("2 + 3?", "5")], "01", 0, 0, 0),
        ([("x?", "1"), ("X ?", "1"), ("x?", "2"), ("y?", "3")], "3", 0, 0, 3),
        ([("x?", "1"), ("x ?", "1"), ("x ?", "1"), ("x?", "1")], "0", 2, 1, 0),
    ],
    ids=["a sign", "one of three disagrees", "repeated and restated"],
)
def test_duplicates_and_conflicts_by_hand(rows, kept, repeated, restated, conflicting):
    found, counts = deduplicate([Problem(str(i), text, answer) for i, (text, answer) in enumerate(rows)])
    assert "".join(p.id for p in found) == kept
    assert counts == {
        "rows": len(rows), "repeated": repeated, "restated": restated, "conflicting": conflicting
    }  # fmt: skip
