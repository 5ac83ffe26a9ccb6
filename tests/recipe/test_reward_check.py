"""A reward function that cannot score ends a run before its first step; one that fails on some texts is heard of."""

from pathlib import Path

import pandas as pd
import pytest
from small_runs import Run

from dapo_lit.errors import RewardError
from dapo_lit.recipe.parts import Parts

FUNCTIONS = str(Path(__file__).parents[1] / "rewards")


@pytest.fixture(autouse=True)
def _functions(monkeypatch):
    monkeypatch.syspath_prepend(FUNCTIONS)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("one_for_all", "returned 1 scores for 20 completions"),
        ("no_list", "returned 1.0 for 20 completions"),
        ("needs_more", r"KeyError: 'rubric' \(reward_functions.py:\d+\)"),
        ("absent", "a reward function cannot be loaded: AttributeError"),
    ],
)
@pytest.mark.parametrize("setting", ["reward.function=FUNCTION", "reward.weights={correctness:1.0,FUNCTION:0.1}"])
def test_a_run_with_a_function_that_cannot_score_is_refused(compose, name, said, setting):
    path = f"reward_functions.{name}"
    parts = Parts(compose(setting.replace("FUNCTION", path)))
    with parts.verifier, pytest.raises(RewardError, match=f"before the first step: {path}: {said}.*rewards.md"):
        parts.check()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("likes_everything", "counts junk as right, such as ''"),
        ("likes_nothing", "counts the reference answer as wrong in all of 4 problems"),
        ("right_answers", "counts the reference answer as wrong"),  # it wants a hash, the task wants a number
    ],
)
def test_verdicts_that_look_wrong_are_warned_about(compose, capsys, name, said):
    parts = Parts(compose(f"reward.function=reward_functions.{name}"))
    with parts.verifier:
        parts.check()
    assert f"warning: reward.function=reward_functions.{name} {said}" in capsys.readouterr().out


SOME = (
    "reward.function=reward_functions.raises_on_plus", "budget.steps=2", "logger.rollouts_every=1",
    "algorithm.techniques.dynamic_sampling=false",
)  # fmt: skip


def test_the_first_error_of_a_run_is_printed_once_and_stored_and_the_rows_have_theirs(compose, capsys):
    run = Run(compose(*SOME, "reward.max_error_frac=1"))
    run.fit()
    printed, stored = capsys.readouterr().out, (run.folder.path / "reward_errors.txt").read_text()
    for text in (printed, stored):
        assert text.count('raise ArithmeticError("plus is not understood")') == 1
    assert stored.startswith("step 1\nreward_functions.raises_on_plus:\nTraceback")
    table = pd.read_parquet(run.folder.path / "rollouts" / "step_000002.parquet")
    has_plus = table["response"].str.contains("+", regex=False)
    assert has_plus.any()
    assert not has_plus.all()
    assert (table["error"].notna() == has_plus).all()
    assert table["error"].dropna().str.contains("ArithmeticError: plus is not understood").all()


def test_too_many_errors_end_the_run_with_the_traceback_of_the_first(compose):
    run = Run(compose(*SOME, "reward.max_error_frac=0.01"))
    with pytest.raises(RewardError, match=r"(?s)completions of step 1.*max_error_frac=0.01.*raise ArithmeticError"):
        run.fit()
