import pytest

from math_answers.extraction import extract
from math_answers.free_text import find_reference
from math_answers.normalise import normalise_answer
from math_answers.templates import MAX_ANSWER_CHARS


@pytest.mark.parametrize(
    ("extraction", "text", "answer"),
    [
        # the last answer line of the last 300 characters
        ("answer_line", "Answer: 3\nno, wait.\nanswer : $4$ ", "$4$"),
        ("answer_line", "Answer: 3\n" + "x" * 290, "3"), ("answer_line", "Answer: 3\n" + "x" * 300, None),
        ("answer_line", "Answer:\n42", "42"), ("answer_line", "**Answer:**\n42", "42"),
        ("answer_line", "**Final Answer:**\n\n\\[\n\\boxed{42}\n\\]", r"\boxed{42}"),
        ("answer_line", "**Answer:** \n$$\n42\n$$", "42"), ("answer_line", "Answer:**42**", "42"),
        # an amount, and not the start of a formula that ends in a later one
        ("answer_line", "Answer: $18\n\nExplanation: 9 eggs at $2 each.", "$18"),
        ("answer_line", "Answer:\n$\n\\frac{1}{2}\n$", r"\frac{1}{2}"),
        ("answer_line", "Answer: $18.\nIt costs $2 each.", "$18."), ("answer_line", "Answer: $x =\n5$", "x = 5"),
        ("answer_line", "Answer: $\\frac{1}{2}\n$", r"\frac{1}{2}"),
        ("answer_line", "Answer:```\n1\n+ 2\n```", "1 + 2"),
        # the last balanced box
        ("boxed", r"\boxed{1} then \boxed{2}", "2"), ("boxed", r"\boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("boxed", r"\boxed {x}", "x"), ("boxed", r"\fbox{7}", "7"), ("boxed", r"\boxed", None),
        ("boxed", r"\boxed{\left\{ 1, 2 \right.}", r"\left\{ 1, 2 \right."), ("boxed", "boxed{3}", None),
        ("boxed", r"\boxed{3} and then \boxed{4", "3"),
        # the rest of the line after the last hash
        ("hash", "7+4=11;11+9=20;#20", "20"), ("hash", "so 72\n#### 72\n", "72"),
        ("hash", "## Step 1\n#### 1,000", "1,000"), ("hash", "#", None), ("hash", "20", None),
        # the last number wherever it stands
        ("number", "12 + 25 = 37", "37"), ("number", "12-25", "25"), ("number", "It is -3.", "-3"),
        ("number", "1,200 apples", "1,200"), ("number", "So:\n- 42", "42"), ("number", "from 10 - 25", "25"),
        ("number", "it costs - $5", "- $5"), ("number", "x2 and 1/2 a", "1/2"), ("number", "no", None),
    ],
)  # fmt: skip
def test_the_answer_is_found_where_its_extraction_looks_for_it(extraction, text, answer):
    assert extract(text, extraction) == answer


def test_an_answer_longer_than_the_limit_is_none():
    assert extract("#" + "1" * MAX_ANSWER_CHARS, "hash") is not None
    assert extract("#" + "1" * (MAX_ANSWER_CHARS + 1), "hash") is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("**Answer:** 42", "42"),
        ("Answer: 3\nWait, no.\nAnswer: 4\n", "4"),
        ("Final Answer: The final answer is $(0, 1)$. I hope it is correct.", "(0, 1)"),
        ("Final Answer: The largest $n$ is 34.", "34"),
        ("The answers are $\\frac12$ and $3$.", "\\frac12, 3"),
        ("The answer is\n\\[ 5 \\]", "5"),
        ("We find that $x \\lt 3$.", "x \\lt 3"),
        ("First 12, then 30 apples: in all 42 apples were sold by the shop", "42"),
        ("<think> \\boxed{42} </think> It is \\boxed{43}.", "43"),
        ("<think> \\boxed{42} </think>", None),
        ("\\boxed{1} papers and \\boxed{2} bins", "1, 2"),
        ("\\boxed{1} is too small, we need a larger one. So the result must be \\boxed{2}", "2"),
        ("\\boxed{7}. Again: \\boxed{7}", "7"),
        ("7, -2, \\text{ and } -5", "7, -2, \\text{ and } -5"),
        ("弗兰克一共有**858颗**糖果。", "858"),
        ("Réponse: il lui reste 220 $ à payer d'ici 12 mois.", "220"),
        # an "A:" that starts the last line
        ("He pays $5 and gets $3.\nA: 8", "8"),
        ("Q: how many?\nA: The answer is 8.", "8"),
        ("First 3 hours.\nSo he walks 5*7=<<5*7=35>>35 hours a week", "35"),
        ("So $x = 5$.", "x = 5"),
        # amounts of money are no formulas, numbers in formulas are
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


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("x = 42", "42"), ("42 square", "42"), ("$336$", "336"), (r"336^\circ", "336"), ("1,234", "1234"),
        ("1,2,x", "1,2,x"), (r"\frac12", r"\frac{1}{2}"), (r"\sqrt3", r"\sqrt{3}"), (r"\text{an apple}", "apple"),
        (r"the value is $\boxed{7}$ dollars", "7"), (r"10\text{ cm}", "10"), (r"\$ 5", "5"),
    ],
)  # fmt: skip
def test_answers_take_the_form_that_dapos_scorer_gives_them(answer, normal):
    assert normalise_answer(answer) == normal
