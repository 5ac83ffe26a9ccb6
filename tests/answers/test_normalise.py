import pytest

from math_answers.normalise import normalise_answer


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
