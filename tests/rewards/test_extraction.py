import pytest

from dapo_lit.rewards.extraction import MAX_ANSWER_CHARS, extract


def test_the_last_answer_line_counts():
    assert extract("Answer: 3\nno, wait.\nanswer : $4$ ", "answer_line") == "$4$"


def test_an_answer_line_before_the_last_300_characters_is_not_seen():
    assert extract("Answer: 3\n" + "x" * 290, "answer_line") == "3"
    assert extract("Answer: 3\n" + "x" * 300, "answer_line") is None


def test_an_answer_on_the_line_after_the_colon_is_read_as_by_dapos_scorer():
    assert extract("Answer:\n42", "answer_line") == "42"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed {x}", "x"),
        (r"\fbox{7}", "7"),
        (r"\boxed{\left\{ 1, 2 \right.}", r"\left\{ 1, 2 \right."),
        (r"\boxed{3} and then \boxed{4", "3"),
        ("boxed{3}", None),
        (r"\boxed", None),
    ],
)
def test_the_last_balanced_box_counts(text, answer):
    assert extract(text, "boxed") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("7+4=11;11+9=20;#20", "20"),
        ("so 72\n#### 72\n", "72"),
        ("## Step 1\n#### 1,000", "1,000"),
        ("#", None),
        ("20", None),
    ],
)
def test_hash_takes_the_rest_of_the_line_after_the_last_hash(text, answer):
    assert extract(text, "hash") == answer


def test_an_answer_longer_than_the_limit_is_none():
    assert extract("#" + "1" * MAX_ANSWER_CHARS, "hash") is not None
    assert extract("#" + "1" * (MAX_ANSWER_CHARS + 1), "hash") is None
