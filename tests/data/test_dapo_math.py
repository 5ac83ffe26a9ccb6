"""DAPO-Math-17k as published gives the problems it holds, once each; duplicates and conflicts are reported."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_lit.data.duplicates import deduplicate
from dapo_lit.data.problem import Problem
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
    assert problems == [Problem("u-1", "What is 2 + 3?", "5"), Problem("u-2", "What is 4 * 2?", "8")]
    assert "200 rows, 2 problems kept; 198 exact repetitions; 0 restated" in selection.lines[0]
    assert selection.counts == {"duplicates": {"rows": 200, "repeated": 198, "restated": 0, "conflicting": 0}}


def test_the_whole_set_published_and_as_jsonl_holds_the_same_problems(dapo_math, tmp_path):
    plain = dapo_math
    path = write_parquet(tmp_path / "dapo.parquet", [published(p.problem, p.answer, p.id) for p in plain])
    kept, report = deduplicate(plain)
    assert [(p.id, p.problem, p.answer) for p in load_problems(path)] == [(p.id, p.problem, p.answer) for p in kept]
    assert len(kept) == report.num_kept == len(plain) - sum(bool(p.meta["dup_of"] or p.meta["conflict"]) for p in plain)


def test_the_marked_duplicates_and_conflicts_of_the_real_set_are_found_and_no_others(dapo_math):
    problems = dapo_math
    kept, report = deduplicate(problems)
    marked = {p.id for p in problems if p.meta["dup_of"] or p.meta["conflict"]}
    assert {p.id for p in problems} - {p.id for p in kept} == marked
    assert {id for group in report.conflicts for id, _ in group} == {p.id for p in problems if p.meta["conflict"]}
    assert len(report.conflicts) == 15
    assert ("dapo-35", "64") in report.conflicts[0]
    assert ("dapo-179", "6") in report.conflicts[0]
    assert report.num_rows == report.num_kept + report.num_repeated + len(report.restated) + sum(
        map(len, report.conflicts)
    )


def test_aime_as_published_with_32_repeats_is_thirty_problems(data_file, tmp_path):
    aime = load_problems(str(data_file("aime_2024.jsonl")))
    rows = [published(p.problem, p.answer, index) for index, p in enumerate(aime)] * 32
    for row in rows:
        row["extra_info"] = {**row["extra_info"], "raw_problem": "...", "split": None}
    problems = load_problems(write_parquet(tmp_path / "aime-2024.parquet", rows))
    assert [(p.problem, p.answer) for p in problems] == [(p.problem, p.answer) for p in aime]
    assert problems[7].id == "aime-2024-7", "an index is no id outside its data set"
    assert problems[7].meta == {"raw_problem": "..."}


def test_a_prompt_without_the_template_is_the_statement_and_is_counted(tmp_path):
    row = published("", 5, "u-1")
    row["prompt"] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 3?"}]
    (problem,), selection = load_with_selection(write_parquet(tmp_path / "train.parquet", [row]), "train")
    assert (problem.problem, problem.answer) == ("What is 2 + 3?", "5")
    assert "1 prompts without DAPO's template" in selection.lines[0]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("prompt", "What is 2 + 3?", "`prompt` must be a list of chat messages"),
        ("prompt", [], "`prompt` must be a list of chat messages"),
        ("prompt", [{"role": "assistant", "content": "5"}], "`prompt` must be a list of chat messages"),
        ("reward_model", "5", "`reward_model` must be an object"),
        ("reward_model", {"style": "rule"}, "has no `reward_model.ground_truth`"),
        ("reward_model", {"ground_truth": ["5"]}, "`reward_model.ground_truth` is a list"),
        ("extra_info", 3, "`extra_info` must be an object"),
        ("extra_info", {"index": "u-1"}, "the id 'u-1' is already used at train.jsonl, line 1"),
    ],
)
def test_a_bad_row_of_the_published_schema_is_named(tmp_path, key, value, reason):
    file = tmp_path / "train.jsonl"
    rows = [published("What is 1 + 1?", "2", "u-1"), {**published("What is 2 + 3?", "5", "u-2"), key: value}]
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError) as caught:
        load_problems(str(file))
    assert "train.jsonl, line 2: " in str(caught.value)
    assert reason in str(caught.value)


def test_statements_that_differ_in_a_sign_are_two_problems():
    problems = [Problem("a", "What is 2 - 3?", "-1"), Problem("b", "What is 2 + 3?", "5")]
    assert deduplicate(problems)[0] == problems


def test_three_rows_of_which_one_disagrees_are_all_dropped():
    problems = [Problem("a", "x?", "1"), Problem("b", "X ?", "1"), Problem("c", "x?", "2"), Problem("d", "y?", "3")]
    kept, report = deduplicate(problems)
    assert [p.id for p in kept] == ["d"]
    assert report.conflicts == [[("a", "1"), ("b", "1"), ("c", "2")]]


def test_repeated_and_restated_problems_are_counted_separately():
    problems = [Problem("a", "x?", "1"), Problem("b", "x ?", "1"), Problem("c", "x ?", "1"), Problem("d", "x?", "1")]
    kept, report = deduplicate(problems)
    assert [p.id for p in kept] == ["a"]
    assert report.restated == [("a", "b")]
    assert report.num_repeated == 2


@given(st.lists(st.tuples(st.sampled_from(["x", "X", "x ", "y", "Y y", "z"]), st.sampled_from("12")), max_size=12))
def test_deduplication_accounts_for_every_row_and_leaves_nothing_to_do(pairs):
    problems = [Problem(str(i), text, answer) for i, (text, answer) in enumerate(pairs)]
    kept, report = deduplicate(problems)
    conflicting = sum(map(len, report.conflicts))
    assert report.num_rows == len(kept) + report.num_repeated + len(report.restated) + conflicting
    again, nothing = deduplicate(kept)
    assert again == kept
    assert (nothing.num_repeated, nothing.restated, nothing.conflicts) == (0, [], [])
