"""Rows to imitate are read with their place, and a vote keeps those of the majority."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_lit.data.demonstrations import agreeing, load_demonstrations
from dapo_lit.data.rows import DataError


def by_value(pairs: list[tuple[str, str]]) -> list[bool]:
    return [float(a) == float(b) for a, b in pairs]


def vote(rows: list[tuple[str, str | None]], min_samples: int = 2, min_frac: float = 0.5):
    prompts, answers = zip(*rows, strict=True)
    return agreeing(prompts, answers, by_value, min_samples=min_samples, min_frac=min_frac)


def test_rows_keep_their_text_and_their_place(write_jsonl):
    path = write_jsonl({"prompt": "1+1=", "response": "#2"}, {"prompt": "1+2=", "response": " #3", "score": 1})
    first, second = load_demonstrations(path)
    assert (first.prompt, first.response, second.response) == ("1+1=", "#2", " #3")
    assert second.place.endswith("rows.jsonl, line 2")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "2+2="}, r"line 2: has no `response`.*every row needs `prompt` and `response`"),
        ({"prompt": "2+2=", "response": 4}, r"line 2: `response` is the number 4, not text"),
        ({"prompt": " ", "response": "#4"}, r"line 2: `prompt` is empty"),
        ("{", r"line 2: not valid JSON"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_reason(write_jsonl, row, message):
    with pytest.raises(DataError, match=message):
        load_demonstrations(write_jsonl({"prompt": "1+1=", "response": "#2"}, row))


def test_the_largest_class_of_equivalent_answers_is_kept_and_every_row_is_counted_once():
    found = vote(
        [
            ("a", "0.5"),  # 0.5, .5 and 0.50 are one answer: three of five
            ("b", "7"),
            ("a", ".5"),
            ("a", "3"),
            ("a", None),
            ("a", "0.50"),
            ("b", "8"),  # 7 and 8 tie
            ("c", "1"),  # one sample is no agreement
        ]
    )
    assert found.kept == [0, 2, 5]
    assert (found.num_unanswered, found.num_outvoted, found.num_undecided) == (1, 1, 3)
    assert (found.num_prompts, found.num_prompts_kept) == (3, 1)


def test_rows_without_an_answer_count_against_the_share():
    rows = [("a", "1"), ("a", "1"), ("a", None), ("a", None), ("a", None)]
    assert vote(rows).kept == []
    assert vote(rows, min_frac=0.4).kept == [0, 1]
    assert vote(rows, min_frac=0.4, min_samples=3).kept == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "1.0", "2", "3", None])), min_size=1))
def test_no_row_is_lost_and_kept_rows_of_a_prompt_agree(rows):
    found = vote(rows)
    assert len(found.kept) + found.num_unanswered + found.num_outvoted + found.num_undecided == len(rows)
    for prompt in "abc":
        assert len({float(rows[i][1]) for i in found.kept if rows[i][0] == prompt}) <= 1
