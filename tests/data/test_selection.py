"""What a run leaves out of its training problems, and how it reports that."""

import pytest

from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import DataError
from dapo_lit.data.selection import SelectionReport, select

PROBLEMS = [Problem("unclear", "How many?", "1"), Problem("unclear-2", "How many?", "2")]


def test_without_filters_nothing_is_dropped_and_nothing_is_said():
    selection = SelectionReport()
    assert select(PROBLEMS, selection) == PROBLEMS
    assert (selection.counts, selection.lines) == ({}, [])
    assert selection.with_prompts(7, 0, 0, 0).lines == ["problems: 7 to train on, 0 held out"]
    assert selection.with_prompts(5, 3, 2, 1).counts == {"train": 5, "heldout": 3, "long": 2, "long_heldout": 1}


def test_a_filter_that_leaves_nothing_is_refused_by_name():
    with pytest.raises(DataError, match=r"task\.deduplicate"):
        select(PROBLEMS, SelectionReport(), drops_duplicates=True)
