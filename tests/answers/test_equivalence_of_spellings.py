r"""The same answer in the spellings of money, units, times, bases, conditions, choices and words.

The rules are written down in docs/rewards.md; each row here is a case of one of them.
"""

import pytest
from judging import same

EQUAL = {
    "money, units, times": [
        ("USD 5", r"\$5"),
        ("Rs. 50", "50"),
        ("5 EUR", "5"),
        ("$1.5 million", "1500000"),
        (r"5\,\mathrm{m}", "5"),
        (r"5\text{ m}", r"5\text{ meters}"),
        (r"5\text{ m}", "5m"),
        (r"9.8 \, m/s^2", "9.8"),
        (r"9.8\,\mathrm{m}/\mathrm{s}^2", "9.8"),
        ("60 km/h", "60 kph"),
        ("72 miles per hour", "72 mph"),
        ("5 sq. ft.", "5 square feet"),
        ("5 mL", "5 ml"),
        ("7 years old", "7"),
        ("20°C", "20"),
        (r"20^{\circ}\mathrm{C}", "20 degrees Celsius"),
        ("12:30 PM", "12:30 p.m."),
        (r"10\!:\!45 \text{ a.m.}", "10:45 am"),
        ("3:00", "3:00 pm"),
        ("5th", "5"),
    ],
    "scientific notation and bases": [
        ("3e8", r"3 \times 10^8"),
        ("1e2", "100"),
        ("1e-3", "0.001"),
        ("1e-3", r"10^{-3}"),
        ("2e-3", "0.002"),
        ("2e-3", "2e - 3"),
        ("3x10^8", "300000000"),
        ("7 x 8", "56"),
        (r"1011_{\text{two}}", "1011_2"),
        (r"1011\text{ (base 2)}", "1011_{2}"),
        (r"{1 \over 2}", "0.5"),
        (r"1,2,\ldots,10", r"1,2,\dots,10"),
        (r"5\operatorname{cis} 30^\circ", r"5(\cos 30^\circ + i\sin 30^\circ)"),
    ],
    "ratios": [("2:3", r"\frac{2}{3}"), ("0.5", "1:2")],
    "conditions": [
        ("x > 1 and x < 2", "(1,2)"),
        (r"x > 1 \text{ and } x \le 2", "1 < x <= 2"),
        ("x < 1 and x > 2", r"(-\infty,1) \cup (2,\infty)"),
        (r"x \le -1 \cup x \ge 1", r"(-\infty,-1]\cup[1,\infty)"),
        ("(-oo, 3)", r"(-\infty, 3)"),
        ("all real numbers", r"\mathbb{R}"),
        ("5 = x", "5"),
        ("a + b = 5", "5"),
    ],
    "choices with their text, numbers in words": [
        ("Option A", "A"),
        ("choice (B)", "(B)"),
        ("(A) 12", "12"),
        (r"\textbf{(E)}\ 12", "12"),
        (r"\textbf{(E)}\ 12", "E"),
        ("three", "3"),
        (r"\text{Twenty-five}", "25"),
        ("No solutions", r"\text{no solution}"),
        ("DNE", "does not exist"),
        ("2020-01-05", "2020-01-05"),
    ],
}


@pytest.mark.parametrize(("prediction", "answer"), [pair for pairs in EQUAL.values() for pair in pairs])
def test_one_answer_in_two_spellings_is_equal(prediction, answer):
    assert same(prediction, answer)
