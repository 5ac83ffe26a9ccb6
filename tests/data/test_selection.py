"""What a run leaves out of its training problems, and how it reports that."""

import json

import pytest

from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import DataError
from dapo_lit.data.selection import SelectionReport, select

WORDS = "a train leaves the town at noon and travels north at eighty miles an hour until it meets the other"
PROBLEMS = [
    Problem("sum", "What is 2 + 3?", "5"),
    Problem("sum-again", "what is  2 + 3?", "5"),
    Problem("train", f"Suppose {WORDS}. When?", "3"),
    Problem("hard", "Find all primes p with p + 2 prime below 20 and add them.", "41"),
    Problem("unclear", "How many?", "1"),
    Problem("unclear-2", "How many?", "2"),
    Problem("product", "What is 4 * 2?", "8"),
]
EVALUATION = [Problem("eval-0", WORDS.capitalize() + ".", "3"), Problem("eval-1", "What is 1 + 1?", "2")]


def test_every_filter_drops_its_own_and_says_so():
    selection = SelectionReport()
    kept = select(
        PROBLEMS,
        selection,
        drops_duplicates=True,
        evaluations={"eval.jsonl": EVALUATION},
    )
    assert [p.id for p in kept] == ["sum", "hard", "product"]
    assert selection.counts == {
        "duplicates": {"rows": 7, "repeated": 0, "restated": 1, "conflicting": 2},
        "overlap": {"eval.jsonl": {"dropped": 1, "evaluation_problems": 2, "evaluation_problems_covered": 1}},
    }
    assert selection.lines[0].startswith("duplicates: 7 rows, 4 problems kept")
    assert "1 of 2 evaluation problems are in the training set" in selection.lines[1]
    json.dumps(selection.counts)


def test_without_filters_nothing_is_dropped_and_nothing_is_said():
    selection = SelectionReport()
    assert select(PROBLEMS, selection) == PROBLEMS
    assert (selection.counts, selection.lines) == ({}, [])
    assert selection.with_prompts(7, 0, 0, 0).lines == ["problems: 7 to train on, 0 held out"]
    assert selection.with_prompts(5, 3, 2, 1).counts == {"train": 5, "heldout": 3, "long": 2, "long_heldout": 1}


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"evaluations": {"e": EVALUATION}}, "task.exclude_overlap_with leaves no problem to train on"),
        ({"drops_duplicates": True}, "task.deduplicate leaves no problem to train on"),
    ],
)
def test_a_filter_that_leaves_nothing_is_refused_by_name(filters, message):
    problems = {"evaluations": PROBLEMS[2:3], "drops_duplicates": PROBLEMS[4:6]}[next(iter(filters))]
    with pytest.raises(DataError) as caught:
        select(problems, SelectionReport(), **filters)
    assert message in str(caught.value)
