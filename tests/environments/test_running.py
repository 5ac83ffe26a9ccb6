"""A user's environment in its workers, and the second try."""

import os
import time
from pathlib import Path

import pytest

from dapo_lit.environments.running import Answer, Environment, SecondTry, UserEnvironment
from dapo_lit.environments.tools import WRONG
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.supervisor import WorkersLostError
from dapo_lit.rewards.supervisor_process import MOST_PRINTED
from dapo_lit.rewards.verifier import Verifier

PROBLEM = RewardProblem("p", "?", "42")


@pytest.fixture(autouse=True)
def _environments(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def answered(environment: Environment, count: int) -> dict:
    found, end = {}, time.monotonic() + 30
    while len(found) < count and time.monotonic() < end:
        found |= dict(environment.answers(0.5))
    return found


def ask(name: str, *turns: tuple[str, ...], deadline_s: float = 20.0) -> list[Answer]:
    made = UserEnvironment(f"user_environments.{name}", deadline_s, workers=2)
    try:
        for ticket, responses in enumerate(turns):
            made.ask(ticket, PROBLEM, responses)
        found = answered(made, len(turns))
    finally:
        made.close()
    return [found[ticket] for ticket in range(len(turns))]


def test_a_function_gets_the_problem_and_all_turns():
    assert ask("echo", ("a",), ("a", "b"), ("a", "stop")) == [Answer("1:42:a"), Answer("2:42:b"), Answer(None)]


def test_a_class_is_built_anew_and_gets_all_turns_in_order():
    assert ask("Counter", ("1",), ("1", "10"), ("5",)) == [Answer("43"), Answer("53"), Answer("47")]


def test_an_answer_may_have_the_reward_of_its_turn():
    paid, ended, *refused = ask("pays", ("a",), ("a", "stop"), ("nan",), ("word",), ("list",))
    assert (paid, ended) == (Answer("well", reward=-0.25), Answer(None, reward=1.0))
    for answer, given in zip(refused, ("nan", "much", "[1]"), strict=True):
        assert answer.error is not None
        assert "finite number" in answer.error
        assert given in answer.error


def test_a_failure_is_of_its_own_question_only():
    raised, left, ended, number, nothing, halves = ask(
        "obey", ("raise",), ("well",), ("exit",), ("number",), ("nothing",), ("halves",)
    )
    assert (left, halves) == (Answer("well"), Answer("a?"))
    for answer, word in ((raised, "no answer to this"), (ended, "exit code 3"), (number, "int"), (nothing, "0 char")):
        assert answer.observation is None
        assert word in answer.error
        assert "user_environments.obey" in answer.error


def test_what_an_environment_prints_fills_no_log(capfd):
    assert ask("chatter", ("a",), ("b",)) == [Answer("well")] * 2
    printed = capfd.readouterr()
    assert "line 0 of " in printed.err
    assert printed.err.count("more is printed") == 1
    assert len(printed.err) < MOST_PRINTED + 1000
    assert printed.out == ""  # which has the answer of a command with --json


def test_a_slow_answer_is_late_and_holds_up_no_other():
    made = UserEnvironment("user_environments.obey", 1.0, workers=2)
    try:
        made.ask("first", PROBLEM, ["well"])
        answered(made, 1)  # the workers have started
        made.ask("slow", PROBLEM, ["sleep"])
        made.ask("fast", PROBLEM, ["well"])
        found = list(answered(made, 2).items())
    finally:
        made.close()
    assert found[0] == ("fast", Answer("well"))
    assert "deadline" in found[1][1].error


@pytest.mark.parametrize("name", ["of_one", "WithoutStep", "NUMBER", "absent"])
def test_what_is_no_environment_ends_the_run_with_its_name(name):
    with pytest.raises(WorkersLostError, match=f"environment.*{name}"):
        ask(name, ("a",))


def test_a_killed_worker_is_replaced_and_no_question_is_lost_or_called_late():
    made = UserEnvironment("user_environments.echo", 20.0, workers=1)
    try:
        made.ask(0, PROBLEM, ["a"])
        assert answered(made, 1) == {0: Answer("1:42:a")}
        # Often, as a question may be written to a worker before its end is known.
        for ticket in range(1, 41):
            assert made._supervisor is not None
            os.kill(list(made._supervisor.pids())[1], 9)
            made.ask(ticket, PROBLEM, ["b"])
            assert answered(made, 1) == {ticket: Answer("1:42:b")}
    finally:
        made.close()


def test_a_second_try_is_told_that_an_answer_is_wrong_and_ends_with_a_right_one():
    made = SecondTry(Verifier(rule="numeric", extraction="hash"))
    try:
        for ticket, responses in enumerate([("#41",), ("#41", "#42"), ("#42", "none")]):
            made.ask(ticket, RewardProblem("p", "?", "42", turns=responses), responses)
        assert answered(made, 3) == {0: Answer(WRONG), 1: Answer(None), 2: Answer(WRONG)}
    finally:
        made.close()


def test_withdrawn_questions_that_no_worker_has_begun_hold_up_no_other():
    made = UserEnvironment("user_environments.obey", 3.0, workers=1)
    try:
        made.ask("first", PROBLEM, ["well"])
        answered(made, 1)  # the worker has started
        for ticket in range(20):
            made.ask(ticket, PROBLEM, ["sleep"])
        made.withdraw([*range(20)])
        made.ask("wanted", PROBLEM, ["well"])
        # One of twenty is under way, and late after three seconds.
        assert answered(made, 1) == {"wanted": Answer("well")}
        assert not made._asked
    finally:
        made.close()
