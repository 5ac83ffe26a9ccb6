from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from math_answers.quantity import read_quantity
from math_answers.rules import check_reference, decide


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", Fraction(72)), ("007", Fraction(7)), ("-5", Fraction(-5)), ("\u22123", Fraction(-3)),
        ("1,234.5", Fraction(2469, 2)), ("1 000", Fraction(1000)), ("1{,}234", Fraction(1234)),
        (r"1\,234", Fraction(1234)), (r"32,\! 349", Fraction(32349)), ("0,5", Fraction(1, 2)), (".5", Fraction(1, 2)),
        ("5.", Fraction(5)), ("$9$", Fraction(9)), (r"\(9\)", Fraction(9)), ("$1,000.99", Fraction(100099, 100)),
        (r"-\$5", Fraction(-5)), ("3/4", Fraction(3, 4)), (r"-\frac{3}{4}", Fraction(-3, 4)),
        (r"\dfrac12", Fraction(1, 2)), ("1 1/2", Fraction(3, 2)), (r"918\frac{1}{2}", Fraction(1837, 2)),
        ("3 141/500", Fraction(1641, 500)), ("1 234/5", Fraction(1234, 5)), ("3.5e-7", Fraction(35, 10**8)),
        (r"3.5 \times 10^{-7}", Fraction(35, 10**8)),
    ],
)  # fmt: skip
def test_numbers_are_read_exactly(text, value):
    quantity = read_quantity(text)
    assert quantity is not None
    assert quantity.value == value


@pytest.mark.parametrize(
    "text",
    # lists, bad groups, two signs, no digits, other alphabets, division by zero, beyond the bounds, words
    [
        "", "-", "$", "32, 349", "12,34", "1,000,00", "--5", "1,5", "1/0", "1e9999", "9" * 1001, "20 apples", "nan",
        "0x10", "1_000",
    ],
)  # fmt: skip
def test_what_is_not_exactly_one_number_is_refused(text):
    assert read_quantity(text) is None


@given(st.fractions(), st.sampled_from(["{}", " {} ", "${}$", "{}.", r"\({}\)"]))
def test_every_fraction_is_read_back(value, template):
    assert decide(template.format(value), str(value), "numeric") is True


@given(st.integers())
def test_thousands_separators_change_nothing(number):
    assert decide(f"{number:,}", str(number), "numeric") is True
    assert decide(f"{number:,}", str(number + 1), "numeric") is False


@given(st.text(max_size=40))
def test_any_text_is_decided_without_an_error(text):
    assert decide(text, "42", "numeric") in (True, False)
    assert decide(text, "42", "dapo") in (True, False)


@pytest.mark.parametrize(
    ("prediction", "answer", "is_right"),
    [
        # a percent sign on one side is a unit or a hundredth
        ("28%", "28", True), ("28%", "0.28", True), ("28%", r"28\%", True), ("28", "0.28", False),
        ("0.28%", r"28\%", False),
        # nothing is rounded but printed doubles
        ("5", "5.001", False), ("0.3333", "1/3", False), ("0.3", "0.30000000000000004", True),
        ("0.3", "0.30000000000001", False),
    ],
)  # fmt: skip
def test_percent_signs_and_rounded_numbers(prediction, answer, is_right):
    assert decide(prediction, answer, "numeric") == is_right


def test_a_reference_that_is_no_number_is_refused_under_numeric():
    assert "'abc'" in (check_reference("abc", "numeric") or "")
    assert check_reference("18", "numeric") is None
    assert check_reference(" ", "dapo") is not None
