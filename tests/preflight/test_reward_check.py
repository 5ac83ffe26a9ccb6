"""A reward function that cannot score ends a run before its first step; one that fails on some texts is heard of."""

import json
from pathlib import Path

import pandas as pd
import pytest
from small_runs import Run

from dapo_lit.build.components import RunComponents
from dapo_lit.preflight.training import check_run
from dapo_lit.rewards.functions import RewardError
from dapo_lit.rewards.supervisor import WorkersLostError
from dapo_lit.rewards.verifier import Verifier
from dapo_lit_tools.replays.recorded_step import open_recording, replay

FUNCTIONS = str(Path(__file__).parents[1] / "rewards")


@pytest.fixture(autouse=True)
def _functions(monkeypatch):
    monkeypatch.syspath_prepend(FUNCTIONS)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("one_for_all", r"reward_functions.one_for_all: returned 1 scores for \d+ completions"),
        ("no_list", r"reward_functions.no_list: returned 1.0 for \d+ completions"),
        ("needs_more", r"KeyError: 'rubric' \(reward_functions.py:\d+\)"),
        ("absent", "a reward function cannot be loaded: reward_functions has no absent"),
    ],
)
def test_a_run_with_a_function_that_cannot_score_is_refused(compose, name, said):
    path = f"reward_functions.{name}"
    parts = RunComponents(compose(f"reward.function={path}"))
    with parts.verifier, pytest.raises(WorkersLostError if name == "absent" else RewardError, match=said):
        check_run(parts)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("likes_everything", "counts junk as right, such as ''"),
        ("likes_nothing", "counts the reference answer as wrong in 4 of 4 problems"),
        ("right_answers", "counts the reference answer as wrong"),  # it wants a hash, the task wants a number
    ],
)
def test_verdicts_that_look_wrong_are_warned_about(compose, capsys, name, said):
    parts = RunComponents(compose(f"reward.function=reward_functions.{name}"))
    with parts.verifier:
        check_run(parts)
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
    # They are missing, not wrong: without a verdict, and counted.
    assert (table["correct"].isna() == has_plus).all()
    assert (table["reward"].isna() == has_plus).all()
    row = json.loads((run.folder.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["reward/verifier_error_frac"] == pytest.approx(table[table["examined"]]["correct"].isna().mean())
    assert table["error"].dropna().str.contains("ArithmeticError: plus is not understood").all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (SOME, "(?s)max_error_frac=0.05.*raise ArithmeticError"),
        (
            ("reward.function=reward_functions.slow_on_plus", "reward.deadline_s=0.2"),
            "max_error_frac=0.05",
        ),
    ],
    ids=["errors", "late verdicts"],
)
def test_too_many_completions_without_a_verdict_end_the_run(compose, settings, said):
    run = Run(compose(*SOME[1:], *settings))
    with pytest.raises(RewardError, match=said):
        run.fit()


def test_a_replay_takes_the_recorded_verdicts_and_those_that_are_missing(compose, tmp_path):
    """The function fails on other texts than in the run: a replay that asked it would find other verdicts."""
    run = Run(compose(*SOME, "reward.max_error_frac=1", "replay.record=[2]"))
    run.fit()
    recording = open_recording(run.folder.path, 2, given=("reward_functions.raises_on_plus",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Verifier, "submit", lambda *_: pytest.fail("the verifier was asked"))
        replayed = replay(recording, recording.config)
    row = json.loads((run.folder.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert sum(len(group.missing) for group in replayed.generated) > 0
    assert replayed.metrics["optim/grad_norm"] == row["optim/grad_norm"]
