import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dapo_lit.rewards.pool import Reference, Verifier

HERE = str(Path(__file__).parent)
QUESTION = Reference("p1", "42", problem="?", meta={"level": 3})


@pytest.fixture
def obeying(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    with Verifier(
        rule="numeric", extraction="hash", function="reward_functions.obey", deadline_s=0.3, workers=2, memory_mb=1024
    ) as verifier:
        yield verifier


def alive(pid: int) -> bool:
    """Running or a zombie, as /proc sees it."""
    return Path(f"/proc/{pid}").exists()


def pids(verifier: Verifier) -> list[int]:
    """The fork server and two workers, once both have reported."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        verifier.collect()
        assert verifier._processes is not None
        found = list(verifier._processes.pids())
        if len(found) == 3:
            return found
        time.sleep(0.01)
    raise AssertionError("the workers did not start")


def gone_within(seconds: float, processes: list[int]) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(map(alive, processes))


def test_a_reward_function_sees_problems_and_completions_and_its_scores_come_back(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    with Verifier(rule="numeric", extraction="hash", function="reward_functions.echo") as verifier:
        score, other = verifier.score([(QUESTION, "42"), (QUESTION, "43")])
    assert (score.correct, score.value, score.answer) == (True, 1.0, "p1 3")
    assert not other.correct


@pytest.mark.parametrize("order", ["sleep", "multiply"])
def test_a_task_that_does_not_end_is_killed_at_its_deadline_and_the_next_ones_are_scored(obeying, order):
    scores = obeying.score([(QUESTION, text) for text in ("a", order, "b", order, "c")])
    assert [score.timed_out for score in scores] == [False, True, False, True, False]
    assert [score.correct for score in scores] == [True, False, True, False, True]
    assert [score.value for score in scores] == [1.0, -1.0, 1.0, -1.0, 1.0]


def test_a_function_that_cancels_the_alarm_is_killed_from_outside(obeying):
    scores = obeying.score([(QUESTION, "cancel the alarm and sleep"), (QUESTION, "a")])
    assert [score.timed_out for score in scores] == [True, False]


def test_a_function_that_raises_exits_or_has_no_memory_fails_alone(obeying):
    orders = ["a", "raise", "exit", "allocate", "nan", "b"]
    scores = obeying.score([(QUESTION, text) for text in orders])
    assert [score.correct for score in scores] == [True, False, False, False, False, True]
    assert (scores[1].error or "").startswith("reward_functions.obey: RuntimeError: no reward for this (")
    assert "exit code 3" in (scores[2].error or "")
    assert scores[3].error == "reward_functions.obey: out of memory"
    assert "nan" in (scores[4].error or "")
    assert not any(score.timed_out for score in scores)


def test_a_batch_with_one_bad_completion_costs_the_others_nothing(obeying):
    scores = obeying.score([(QUESTION, "raise" if i == 20 else str(i)) for i in range(100)])
    assert [i for i, score in enumerate(scores) if not score.correct] == [20]


def test_workers_import_no_torch_and_without_the_symbolic_rule_no_sympy(obeying):
    assert obeying.score([(QUESTION, "modules")])[0].answer == ""


def test_workers_ignore_an_interrupt(obeying):
    before = obeying.score([(QUESTION, "interrupt")])
    assert before[0].correct


def test_killed_workers_leave_no_zombie_and_closing_leaves_no_process(obeying):
    obeying.score([(QUESTION, "a")])
    first = pids(obeying)
    obeying.score([(QUESTION, "sleep")] * 2)
    second = pids(obeying)
    killed = [pid for pid in first if pid not in second]
    assert len(killed) == 2
    assert gone_within(5, killed)
    obeying.close()
    assert gone_within(5, second)


def test_the_processes_die_with_a_training_process_that_is_killed(tmp_path):
    code = """
import sys, time
from dapo_lit.rewards.pool import Reference, Verifier
verifier = Verifier(rule="sympy", extraction="hash")
verifier.score([(Reference("a", r"\\sqrt{8}"), r"#2\\sqrt{2}")])
while len(list(verifier._processes.pids())) < 3:
    verifier.collect()
    time.sleep(0.01)
print(*verifier._processes.pids(), flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        processes = [int(pid) for pid in process.stdout.readline().split()]
        assert len(processes) == 3
        process.send_signal(signal.SIGKILL)
    assert gone_within(10, processes)


def test_a_fork_server_that_is_killed_is_started_anew_and_no_response_loses_its_verdict(obeying):
    obeying.score([(QUESTION, "a")])
    for _ in range(4):  # more often than processes may die in a row without an outcome
        first = pids(obeying)
        for number in range(20):
            obeying.submit(number, QUESTION, str(number))
        os.kill(first[0], signal.SIGKILL)
        assert gone_within(5, first[1:])
        for number in range(20, 40):
            obeying.submit(number, QUESTION, str(number))
        scores = dict(obeying.drain())
        assert sorted(scores) == list(range(40))
        assert all(score.correct and score.error is None and not score.timed_out for score in scores.values())
        assert not set(first) & set(pids(obeying))
    os.kill(pids(obeying)[0], signal.SIGKILL)  # nothing under way
    assert obeying.score([(QUESTION, "a")])[0].correct


def test_a_function_that_kills_the_fork_server_again_and_again_ends_the_run_with_the_exit_code(obeying):
    with pytest.raises(RuntimeError, match=r"died 3 times in a row \(exit code -9\)"):
        obeying.score([(QUESTION, "kill the fork server")])


def test_submitting_never_waits_and_collecting_returns_what_is_ready(obeying):
    obeying.score([(QUESTION, "a")])
    start = time.perf_counter()
    obeying.submit("slow", QUESTION, "sleep")
    obeying.submit("fast", QUESTION, "b")
    first = obeying.collect()
    assert time.perf_counter() - start < 0.25  # the deadline is 0.3 s: nothing waited for it
    assert "slow" not in dict(first)
    assert set(dict(first + obeying.drain())) == {"slow", "fast"}


def test_a_deadline_passes_while_nobody_looks(obeying):
    obeying.score([(QUESTION, "a")])
    worker = set(pids(obeying))
    obeying.submit("slow", QUESTION, "sleep")
    time.sleep(0.5)
    assert sum(map(alive, worker)) == len(worker) - 1
    assert dict(obeying.drain())["slow"].timed_out


def test_a_reward_function_that_is_not_there_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="'no_such_module' of the reward function 'f' is not found"):
        Verifier(rule="numeric", extraction="hash", function="no_such_module.f")
    with pytest.raises(ValueError, match=r"package\.module\.function"):
        Verifier(rule="numeric", extraction="hash", function="f")


def test_a_module_without_the_function_stops_the_run_with_its_name(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    with (
        Verifier(rule="numeric", extraction="hash", function="reward_functions.absent") as verifier,
        pytest.raises(RuntimeError, match="absent"),
    ):
        verifier.score([(QUESTION, "a")])


def test_a_function_that_returns_too_few_scores_is_reported(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    with Verifier(rule="numeric", extraction="hash", function="reward_functions.too_few") as verifier:
        score = verifier.score([(QUESTION, "a")])[0]
    assert score.error == "reward_functions.too_few: returned 0 scores for 1 completions"


def test_a_weighted_reward_is_the_sum_of_its_parts_and_correctness_stays_raw(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    weights = {"correctness": 1.0, "format": 0.5, "length": -0.3, "reward_functions.characters": 0.01}
    with Verifier(rule="numeric", extraction="hash", weights=weights) as verifier:
        right, wrong, none = verifier.score([(QUESTION, "x" * 397 + "#42"), (QUESTION, "#41"), (QUESTION, "41")])
    # 400 characters are a tenth of the 4,000 at which the length reward reaches 1
    assert right.parts == pytest.approx(
        {"correctness": 1, "format": 0.5, "length": -0.03, "reward_functions.characters": 4}
    )
    assert right.value == pytest.approx(5.47)
    assert right.correct
    assert wrong.value == pytest.approx(-1 + 0.5 - 0.3 * 3 / 4000 + 0.03)
    assert none.parts["format"] == 0.0
    assert not wrong.correct
    assert not none.correct


def test_weights_without_correctness_or_with_a_bad_number_are_refused():
    with pytest.raises(ValueError, match="correctness"):
        Verifier(rule="numeric", extraction="hash", weights={"format": 1.0})
    with pytest.raises(ValueError, match="format"):
        Verifier(rule="numeric", extraction="hash", weights={"correctness": 1.0, "format": float("nan")})


def test_a_verifier_is_refused_in_a_forked_process():
    with Verifier(rule="sympy", extraction="hash") as verifier:
        verifier.score([(Reference("a", r"\sqrt{8}"), r"#2\sqrt{2}")])
        pid = os.fork()
        if pid == 0:
            try:
                verifier.submit(0, Reference("a", r"\sqrt{18}"), r"#3\sqrt{2}")
            except RuntimeError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
