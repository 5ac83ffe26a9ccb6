"""What a reward function returns is a verdict, or an error that names the function and what it returned."""

import re
from pathlib import Path

import pytest

from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier

HERE = str(Path(__file__).parent)
QUESTION = RewardProblem("p1", "?", "42", meta={"level": 3})


@pytest.fixture(autouse=True)
def _functions(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


def verifier(**settings) -> Verifier:
    return Verifier(rule="numeric", extraction="hash", function="reward_functions.returns", workers=1, **settings)


@pytest.mark.parametrize("wrong_value", [-1.0, 0.0])
def test_one_and_true_are_right_and_zero_false_and_the_wrong_value_are_wrong(wrong_value):
    texts = ["true", "one", "1.0", "false", "zero", "own"]
    with verifier(wrong_value=wrong_value) as made:
        scores = made.score([(QUESTION, text) for text in texts])
        minus_one = made.score([(QUESTION, "minus one")])[0]
    assert [(score.correct, score.value) for score in scores] == [
        *[(True, 1.0)] * 3,
        *[(False, wrong_value)] * 2,
        (True, 0.01),
    ]
    assert all(score.error is None for score in scores)
    assert (minus_one.error is None) == (wrong_value == -1.0)


@pytest.mark.parametrize(
    ("text", "returned"),
    [("hundredth", "0.01"), ("two", "2"), ("nan", "nan"), ("none", "None"), ("text", "'1'"), ("list", "[1.0]")],
)
def test_anything_else_is_an_error_that_says_what_was_returned_and_no_other_completion_suffers(text, returned):
    with verifier() as made:
        good, bad = made.score([(QUESTION, "one"), (QUESTION, text)])
        assert made.first_error == bad.error
    assert good.correct
    assert good.error is None
    assert (bad.correct, bad.value) == (False, -1.0)
    assert f"reward_functions.returns: returned {returned}" in (bad.error or "")


def test_an_addend_of_a_weighted_sum_may_be_any_number_but_no_other_thing():
    weights = {"correctness": 1.0, "reward_functions.returns": 10.0}
    with Verifier(rule="numeric", extraction="hash", weights=weights, workers=1) as made:
        graded, broken = made.score([(QUESTION, "hundredth"), (QUESTION, "none")])
    assert (graded.value, graded.error) == (pytest.approx(-0.9), None)
    assert broken.value == -1.0
    assert "reward_functions.returns: returned None" in (broken.error or "")


def test_a_weighted_sum_that_float32_cannot_square_is_an_error_and_no_infinity():
    with Verifier(
        rule="numeric", extraction="hash", weights={"correctness": 1.0, "reward_functions.characters": 1e300}, workers=1
    ) as made:
        (score,) = made.score([(QUESTION, "a long answer")])
        assert made.first_error == score.error
        assert re.match(r"reward\.weights: .*1\.3e\+301 .*1e\+12 ", score.error or "")
    assert score.value == -1.0
