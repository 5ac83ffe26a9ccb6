"""What a run leaves out of its training problems, and how it reports that."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import dapo_lit
from ablations.errors import DamagedError
from ablations.files.record import checked_record
from dapo_lit.build.problem_sets import problems
from dapo_lit.data.rows import DataError
from dapo_lit.data.selection import SelectionReport


def test_without_filters_nothing_is_dropped_and_nothing_is_said():
    selection = SelectionReport()
    assert selection.with_prompts(7, 0, 0, 0).lines == ["problems: 7 to train on, 0 held out"]
    assert selection.with_prompts(7, 3, 0, 0, asked_train=7, asked_heldout=3).lines == [
        "problems: 7 to train on, 3 held out"
    ]
    assert selection.with_prompts(5, 3, 2, 1).counts == {"train": 5, "heldout": 3, "long": 2, "long_heldout": 1}


def test_where_fewer_problems_are_there_than_asked_for_the_line_says_so():
    lines = SelectionReport().with_prompts(1200, 30, 0, 1, asked_train=5000, asked_heldout=200).lines
    assert lines == [
        "problems: 1,200 to train on, 30 held out (task.num_problems asks for 5,000 and there are 1,200; "
        "task.num_heldout asks for 200 and there are 31); left out, prompt above task.max_prompt_tokens: 0 and 1"
    ]
    # A file without held-out problems has none on purpose.
    assert "num_heldout" not in SelectionReport().with_prompts(7, 0, 0, 0, asked_heldout=200).lines[0]


def test_duplicates_are_dropped_and_a_filter_that_leaves_nothing_is_refused_by_name(compose, tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [json.dumps({"problem": "How many?", "answer": answer}) + "\n" for answer in ("1", "2")]
    settings = ["task=file", f"task.path={file}", "task.template=plain", "reward=number", "task.deduplicate=true"]
    file.write_text("".join([*rows, json.dumps({"problem": "2 + 3", "answer": "5"})]))
    found = problems(compose(*settings))
    assert [p.problem for p in found.train] == ["2 + 3"]
    assert found.selection.counts["duplicates"]["conflicting"] == 2
    file.write_text("".join(rows))
    with pytest.raises(DataError, match=r"task\.deduplicate"):
        problems(compose(*settings))


def test_what_is_counted_may_stand_in_run_json():
    """task.deduplicate=true once ended a run: its record refused the counts of duplicates."""
    selection = SelectionReport()
    selection.add_duplicates({"rows": 5, "repeated": 1, "restated": 0, "conflicting": 2})
    counts = selection.with_prompts(2, 0, 0, 0).counts
    assert checked_record({"problems": counts}, "run.json")["problems"] == counts
    schema = json.loads((Path(dapo_lit.__file__).parent / "schemas" / "run.json").read_text(encoding="utf-8"))
    Draft202012Validator(schema["properties"]["problems"]).validate(counts)
    with pytest.raises(DamagedError, match=r"problems\.duplicates"):
        checked_record({"problems": counts | {"duplicates": 3}}, "run.json")
