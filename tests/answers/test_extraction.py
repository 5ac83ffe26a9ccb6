import pytest

from math_answers.extraction import extract
from math_answers.free_text import find_reference
from math_answers.parse import MAX_ANSWER_CHARS


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 3\nno, wait.\nanswer : $4$ ", "$4$"),
        ("Answer: 3\n" + "x" * 290, "3"),
        ("Answer: 3\n" + "x" * 300, None),
        ("Answer:\n42", "42"),
    ],
)
def test_the_last_answer_line_of_the_last_300_characters_counts(text, answer):
    assert extract(text, "answer_line") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} then \boxed{2}", "2"), (r"\boxed{\frac{1}{2}}.", r"\frac{1}{2}"), (r"\boxed {x}", "x"),
        (r"\fbox{7}", "7"), (r"\boxed{\left\{ 1, 2 \right.}", r"\left\{ 1, 2 \right."),
        (r"\boxed{3} and then \boxed{4", "3"), ("boxed{3}", None), (r"\boxed", None),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("37", "37"), ("12 + 25 = 37", "37"), ("12-25", "25"), ("It is -3.", "-3"), ("1,200 apples", "1,200"),
        ("So:\n- 42", "42"), ("from 10 - 25", "25"), ("it costs - $5", "- $5"), ("x2 and 1/2 a", "1/2"), ("no", None),
    ],
)  # fmt: skip
def test_number_takes_the_last_number_wherever_it_stands(text, answer):
    assert extract(text, "number") == answer


def test_an_answer_longer_than_the_limit_is_none():
    assert extract("#" + "1" * MAX_ANSWER_CHARS, "hash") is not None
    assert extract("#" + "1" * (MAX_ANSWER_CHARS + 1), "hash") is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 8.", "8"),
        ("the answer is \\frac{1}{2}", "\\frac{1}{2}"),
        ("**Answer:** 42", "42"),
        ("### Answer\n42\n", "42"),
        ("Answer: 3\nWait, no.\nAnswer: 4\n", "4"),
        ("Final Answer: The final answer is $(0, 1)$. I hope it is correct.", "(0, 1)"),
        ("Final Answer: The largest $n$ is 34.", "34"),
        ("The answers are $\\frac12$ and $3$.", "\\frac12, 3"),
        ("The answer is\n\\[ 5 \\]", "5"),
        ("so the number is 10 which is 1,000.99m²", "1,000.99"),
        ("We find that $x \\lt 3$.", "x \\lt 3"),
        ("how many $? just about 1$", "1"),
        ("First 12, then 30 apples: in all 42 apples were sold by the shop", "42"),
        ("#### 72", "72"),
        ("<think> \\boxed{42} </think> It is \\boxed{43}.", "43"),
        ("<think> \\boxed{42} </think>", None),
        ("\\boxed{1} papers and \\boxed{2} bins", "1, 2"),
        ("\\boxed{1} is too small, we need a larger one. So the result must be \\boxed{2}", "2"),
        ("\\boxed{7}. Again: \\boxed{7}", "7"),
        ("7, -2, \\text{ and } -5", "7, -2, \\text{ and } -5"),
        ("x+1", "x+1"),
        ("弗兰克一共有**858颗**糖果。", "858"),
        ("答案是 42。", "42"),
        ("Réponse: il lui reste 220 $ à payer d'ici 12 mois.", "220"),
        ("Ответ: 17", "17"),
        # an "A:" that starts the last line
        ("He pays $5 and gets $3.\nA: 8", "8"),
        ("**A:** 8 apples", "8 apples"),
        ("Q: how many?\nA: The answer is 8.", "8"),
        ("First 3 hours.\nSo he walks 5*7=<<5*7=35>>35 hours a week", "35"),
        ("So $x = 5$.", "x = 5"),
        # amounts of money are no formulas, numbers in formulas are
        ("The first one pays $5 and gets $3 in all of the shops", "$3"),
        ("Each of them had $20 - $13 = $7 left for the day", "$7"),
        ("The price of it is $5$ for everyone who asks", "5"),
        ("At a price of $12 the rule $x+1$ holds for us", "x+1"),
        # numbers in words: where they are marked
        ("The answer is eight.", "eight"),
        ("He has eight apples left over after all of that.", None),
        ("", None),
        ("no number here at all, only a long sentence", None),
    ],
)
def test_auto_finds_what_a_reader_would_call_the_answer(text, answer):
    assert extract(text, "auto") == answer


def test_a_reference_that_is_a_worked_solution_is_read_but_its_numbers_are_not():
    assert find_reference("3 + 4 = <<3+4=7>>7\n#### 7") == "7"
    assert find_reference("It is \\boxed{4}.") == "4"
    assert find_reference("5 red and 3 blue balls were in the box") == "5 red and 3 blue balls were in the box"
