"""An environment is tried before the engine is up: its signature, a few episodes, failures and deadlines."""

import re
from pathlib import Path

import pytest

from dapo_lit.build.components import RunComponents
from dapo_lit.config import ConfigError
from dapo_lit.preflight.training import check_run
from dapo_lit.rewards.supervisor import WorkersLostError


@pytest.fixture
def check(compose, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "environments"))

    def refuse(self, ranks=None, stop_requested=None):
        raise AssertionError("the engine was started")

    def run(name: str, *overrides: str, up_to_engine: bool = True) -> None:
        parts = RunComponents(
            compose(f"turns.environment=user_environments.{name}", "turns.max_observation_tokens=8", *overrides)
        )
        with parts.verifier, monkeypatch.context() as patched:
            if up_to_engine:
                patched.setattr(RunComponents, "engine", refuse)
            check_run(parts)

    return run


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("of_one", WorkersLostError, r"does not take \(problem, responses\)"),
        ("WithoutStep", WorkersLostError, "a class without `step"),
        ("absent", WorkersLostError, "the environment cannot be loaded: user_environments has no absent"),
        ("always_raises", ConfigError, "KeyError: 'rubric'"),
        ("NUMBER", WorkersLostError, "is not a function or class"),
    ],
)
def test_an_environment_that_cannot_run_is_refused_by_its_name_before_the_engine(check, name, error, said):
    with pytest.raises(error, match=said) as refused:
        check(name)
    assert "user_environments" in str(refused.value)
    assert "reward function" not in str(refused.value)


def test_one_that_is_late_is_refused_with_its_own_deadline(check):
    with pytest.raises(ConfigError, match=r"turns\.deadline_s=0\.2") as refused:
        check("never_ends", "turns.deadline_s=0.2")
    assert "reached its deadline" in str(refused.value)


def test_one_whose_words_the_policy_has_no_tokens_for_is_refused(check):
    with pytest.raises(ConfigError, match=r"turns\.environment=second_try .* 3 of .*'wrong'"):
        check("", "turns.environment=second_try")


def test_one_that_fails_on_junk_is_refused_or_warned_about_as_the_run_would_be(check, capsys):
    with pytest.raises(ConfigError, match=r"turns\.environment=.* 6 of "):
        check("raises_on_junk")
    check("raises_on_junk", "reward.max_error_frac=0.9", up_to_engine=False)
    assert "warning: turns.environment=user_environments.raises_on_junk " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["waits", "Waiting"])
def test_an_async_environment_is_awaited_and_an_episode_of_it_is_shown(check, capsys, name):
    check(name, up_to_engine=False)
    printed = capsys.readouterr().out
    assert "warning" not in printed
    shown = [line.strip() for line in printed.splitlines() if "| environment" in line]
    assert shown == ["| environment: '77'" + (", reward 0.5" if name == "Waiting" else "")] * 3
    assert re.search(rf"user_environments\.{name}: .*16 of 16 turns of 4 episodes.* 0 of them", printed)


def test_answers_that_change_and_answers_that_do_not_fit_are_warned_about(check, capsys):
    check("never_the_same", up_to_engine=False)
    assert "4 of 4 turns differently" in capsys.readouterr().out
    check("long_winded", up_to_engine=False)
    assert "500 tokens at once" in capsys.readouterr().out
