"""The package's environments: exact arithmetic on whatever a policy writes, a table, and what they do not take."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_lit.environments.tools import ERROR, LONGEST, calculated, calculator, lookup
from dapo_lit.rewards.functions import RewardProblem

NOTHING = RewardProblem("", "", "")


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> tuple[str, Fraction | None]:
    """A calculation and its value; None: it divides by zero."""
    kind = draw(st.sampled_from(["number", "decimal", "sign", "+", "-", "*", "/"] if depth else ["number"]))
    if kind in ("number", "decimal"):
        text = str(draw(st.integers(0, 99))) + (f".{draw(st.integers(0, 99))}" if kind == "decimal" else "")
        return text, Fraction(text)
    if kind == "sign":
        text, value = draw(expressions(depth - 1))
        return f"-({text})", None if value is None else -value
    (left, a), (right, b) = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    space = draw(st.sampled_from(["", " "]))
    text = f"({left}){space}{kind}{space}({right})"
    if a is None or b is None or (kind == "/" and b == 0):
        return text, None
    return text, {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b}[kind]()


@given(expressions())
def test_a_calculation_is_exact(expression):
    text, value = expression
    expected = ERROR if value is None or len(text) > LONGEST else str(value)
    assert calculated(text) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2+3*4", "14"), ("2*3+4", "10"), ("8-3-2", "3"), ("8/4/2", "1"), ("2--3", "5"), ("-2*-3", "6"),
        ("2*-3+1", "-5"), ("99999999999999999999*99999999999999999999", "9999999999999999999800000000000000000001"),
        ("(" * 90 + "7" + ")" * 90, "7"),
    ],
)  # fmt: skip
def test_operators_bind_as_usual_and_numbers_have_any_size(text, value):
    assert calculated(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "2+", "+2", "2 3", "(2", "2)", "()", "2**3", "2//3", ".5", "1..2", "1/0", "1/(2-2)", "2(3)", "-", "(" * 200],
)
def test_what_has_no_value_is_an_error_and_ends_nothing(text):
    assert calculated(text) == ERROR


@given(st.text(alphabet="0123456789.+-*/() ", max_size=220))
def test_whatever_is_written_has_an_answer(text):
    assert calculated(text)


def test_a_call_ends_the_last_turn():
    assert calculator(NOTHING, ["37*48="]) == "1776"
    assert calculator(NOTHING, ["I need 37*48= "]) == "1776"
    assert calculator(NOTHING, ["37*48=1776"]) is None
    assert calculator(NOTHING, ["so x="]) is None  # nothing to compute
    assert calculator(NOTHING, ["="]) is None
    assert calculator(NOTHING, ["2+2=", "#4"]) is None
    assert calculator(NOTHING, ["1*" * 300 + "="]) == ERROR


def test_no_name_of_python_is_looked_up():
    assert calculator(NOTHING, ["__import__('os').getpid()="]) == ERROR  # of the brackets at its end
    assert calculator(NOTHING, ["open('x')+y="]) is None
    assert calculator(NOTHING, ["9**9**9="]) == ERROR


def test_a_table_without_a_mapping_is_named():
    with pytest.raises(ValueError, match="p7"):
        lookup(RewardProblem("p7", "", "", {}), ["?x"])


def test_an_entry_that_parquet_adds_to_a_table_is_none():
    problem = RewardProblem("p", "", "", {"table": {"France": "Paris", "Spain": None, "zero": 0}})
    assert [lookup(problem, [turn]) for turn in ("?France", "?Spain", "?zero")] == ["Paris", ERROR, "0"]
