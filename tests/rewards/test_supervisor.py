import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.score import Score
from dapo_lit.rewards.supervisor import WorkersLostError
from dapo_lit.rewards.verifier import Verifier

HERE = str(Path(__file__).parent)
SLEEP = f"61.{os.getpid()}"
QUESTION = RewardProblem("p1", "?", "42", meta={"level": 3})


@pytest.fixture(autouse=True)
def _functions(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("SLEEP", SLEEP)


def verifier(**settings: Any) -> Verifier:
    return Verifier(rule="numeric", extraction="hash", function="reward_functions.obey", **settings)


@pytest.fixture
def obeying():
    with verifier(deadline_s=0.3, workers=2) as made:
        yield made


def pids(verifier: Verifier, count: int = 3) -> list[int]:
    """The supervisor and its workers, once it has reported them."""
    end = time.monotonic() + 20
    while True:
        verifier.collect()
        assert verifier._supervisor is not None
        found = list(verifier._supervisor.pids())
        if len(found) == count:
            return found
        assert time.monotonic() < end, "the workers did not start"
        time.sleep(0.01)


def gone_within(seconds: float, processes: list[int]) -> bool:
    """None of them runs or is a zombie."""
    places, end = [Path(f"/proc/{pid}") for pid in processes], time.monotonic() + seconds
    while any(place.exists() for place in places) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(place.exists() for place in places)


@pytest.mark.parametrize("order", ["multiply", "cancel the alarm and sleep"])
def test_a_task_that_does_not_end_is_killed_at_its_deadline_and_the_next_ones_are_scored(obeying, order):
    scores = obeying.score([(QUESTION, text) for text in ("a", order, "b", order, "c")])
    assert [score.timed_out for score in scores] == [False, True, False, True, False]
    assert [score.correct for score in scores] == [True, False, True, False, True]
    assert [score.value for score in scores] == [1.0, -1.0, 1.0, -1.0, 1.0]


def test_workers_that_are_late_at_once_are_all_replaced():
    """One that was just forked is no process that a dead worker left behind."""
    with verifier(deadline_s=0.02, workers=8) as hurried:
        scores = hurried.score([(QUESTION, "sleep")] * 48)
    assert [score.timed_out for score in scores] == [True] * 48


def test_what_a_late_function_has_started_dies_with_it_even_in_a_session_of_its_own(obeying):
    scores = obeying.score([(QUESTION, "start a session and wait"), (QUESTION, "a")])
    assert [score.timed_out for score in scores] == [True, False]
    assert gone(SLEEP)


@pytest.mark.parametrize(
    ("order", "end"), [("start a session and wait", "close"), ("start a process and wait", "kill the supervisor")]
)
def test_what_a_function_has_started_dies_with_the_verifier_and_with_a_killed_supervisor(order, end):
    with verifier(deadline_s=60.0, workers=1) as patient:
        patient.submit(0, QUESTION, order)
        until = time.monotonic() + 20
        while gone(SLEEP, 0.0):
            patient.collect()
            assert time.monotonic() < until
        if end == "kill the supervisor":
            os.kill(pids(patient, 2)[0], signal.SIGKILL)
            assert patient._supervisor is not None
            patient._supervisor._tasks.clear()  # or it starts again
            time.sleep(0.1)
            patient.collect()
            assert gone(SLEEP)
    assert gone(SLEEP)


def gone(seconds: str, wait_s: float = 5.0) -> bool:
    """No process `sleep SECONDS` is left after at most `wait_s`."""
    end = time.monotonic() + wait_s
    while True:
        found = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True).stdout
        left = [line for line in found.splitlines() if line.endswith(f"sleep {seconds}") and line[0] != "Z"]
        if not left or time.monotonic() >= end:
            return not left
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not count the waiting time")
def test_a_loaded_machine_makes_no_answer_late():
    """Each task takes 0.6 s of a processor and, with six workers to a processor, 3.6 s of the clock. The rest of the
    deadline is for time that no count has, as where the machine itself is one of several."""
    workers = 6 * len(os.sched_getaffinity(0))
    with verifier(deadline_s=2.2, workers=workers) as loaded:
        loaded.score([(QUESTION, str(number)) for number in range(workers)])  # they have started
        scores = loaded.score([(QUESTION, "work")] * workers)
        slowest = max(list(loaded.service_s)[-workers:])
    assert [score.missing for score in scores] == [False] * workers
    assert slowest > 2.2


def test_a_supervisor_that_is_stopped_is_replaced(obeying, monkeypatch):
    obeying.score([(QUESTION, "a")])
    monkeypatch.setattr("dapo_lit.rewards.supervisor.SILENT_S", 4.0)  # a loaded machine starts one in five
    os.kill(pids(obeying)[0], signal.SIGSTOP)
    assert obeying.score([(QUESTION, "b")])[0].correct


def test_a_function_that_raises_exits_or_has_no_memory_fails_alone(obeying):
    """And one that exits as if all were well is not called again without end."""
    faults = {
        "raise": "no reward for this", "exit": "exit code 3", "exit as if well": "exit code 0",
        "allocate": "out of memory", "nan": "nan",
    }  # fmt: skip
    scores = obeying.score([(QUESTION, text) for text in ("a", *faults, "b")])
    assert [score.correct for score in scores] == [True, *[False] * len(faults), True]
    for score, named in zip(scores[1:-1], faults.values(), strict=True):
        assert named in (score.error or "")
    assert scores[3].missing
    assert not any(score.timed_out for score in scores)


def test_a_function_may_start_processes_ignores_an_interrupt_and_its_worker_has_no_torch_and_no_sympy(obeying):
    scores = obeying.score([(QUESTION, text) for text in ("start a process", "interrupt", "modules")])
    assert [(score.correct, score.error) for score in scores] == [(True, None)] * 3
    assert scores[2].answer == ""


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
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier
verifier = Verifier(rule="sympy", extraction="hash")
verifier.score([(RewardProblem("a", "", r"\\sqrt{8}"), r"#2\\sqrt{2}")])
while len(list(verifier._supervisor.pids())) < 3:
    verifier.collect()
    time.sleep(0.01)
print(*verifier._supervisor.pids(), flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        processes = [int(pid) for pid in process.stdout.readline().split()]
        assert len(processes) == 3
        process.send_signal(signal.SIGKILL)
    assert gone_within(10, processes)


def test_a_supervisor_ends_with_its_owner_while_it_imports_and_forks_from_one_thread_after_that():
    """transformers takes seconds, and many on a busy machine; signals are ignored meanwhile."""
    code = """
import socket, sys, threading, time
from dapo_lit.rewards.supervisor_process import _ending_with
control = socket.socket(fileno=int(sys.argv[1]))
with _ending_with(control):
    pass
print(threading.active_count(), flush=True)
with _ending_with(control):
    time.sleep(60)
"""
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        [sys.executable, "-c", code, str(theirs.fileno())],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[theirs.fileno()],
    ) as process:
        theirs.close()
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        ours.close()
        assert process.wait(30) == 0


def test_a_supervisor_that_is_killed_is_started_anew_and_no_response_loses_its_verdict(obeying):
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


def test_a_worker_that_is_killed_from_outside_is_replaced_and_no_response_loses_its_verdict():
    """As the kernel kills it for want of memory: while it works, and while it has nothing to do."""
    with verifier(deadline_s=20.0, workers=2) as made:
        made.score([(QUESTION, "a")] * 2)
        for order in ("work", "b"):
            first = pids(made)
            for number in range(40):
                made.submit(number, QUESTION, order if number < 2 else str(number))
            time.sleep(0.2)
            for pid in first[1:]:
                os.kill(pid, signal.SIGKILL)
            scores = dict(made.drain())
            assert sorted(scores) == list(range(40))
            assert [score for score in scores.values() if score.missing or not score.correct] == []
            assert gone_within(5, first[1:])
            assert pids(made)[0] == first[0]


def test_a_task_whose_worker_is_killed_twice_fails_and_names_the_signal(obeying):
    scores = obeying.score([(QUESTION, text) for text in ("a", "kill its own process", "b")])
    assert [score.correct for score in scores] == [True, False, True]
    assert "signal 9" in (scores[1].error or "")


FORGED = {
    "no JSON": "nonsense",
    "too short": "[1]",
    "too deep": "[" * 10_000,
    "to another task": '["done", 1000000000, [], 0.0]',
    "of another kind": '["broken", 0, "I say so", 0.0]',
    "a text": '["done", NUMBER, "text", "text"]',
    "a verdict": '["done", NUMBER, true, 0.0]',
    "no score": '["done", NUMBER, [{"surprise": 1}], 0.0]',
    "two scores": json.dumps(["done", 0, [asdict(Score(True, 1.0))] * 2, 0.0]).replace(" 0,", " NUMBER,"),
    "not finite": json.dumps(["done", 0, [asdict(Score(True, float("inf")))], 0.0]).replace(" 0,", " NUMBER,"),
    "a correctness of 1": '["done", NUMBER, [{"correct": 1, "value": 1.0, "answer": null, "parts": {}, '
    '"timed_out": false, "error": null}], 0.0]',
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_worker_that_replies_anything_else_than_scores_fails_its_task_and_no_other(forged):
    with Verifier(
        rule="numeric", extraction="hash", function="reward_functions.forges", deadline_s=5.0, workers=2
    ) as verifier:
        scores = verifier.score([(QUESTION, text) for text in ("a", f"reply {FORGED[forged]}", "b", "c")])
        again = verifier.score([(QUESTION, "d")])
    assert [score.correct for score in [*scores, *again]] == [True, False, True, True, True]
    assert "the reply of a worker" in (scores[1].error or "")


def test_half_a_character_in_an_error_or_an_answer_is_sent_as_a_question_mark(obeying):
    error, answer = obeying.score([(QUESTION, f"half a character in the {place}") for place in ("error", "answer")])
    assert "ValueError: ?" in (error.error or "")
    assert (answer.correct, answer.answer) == (True, "?")


def test_a_function_that_kills_the_supervisor_again_and_again_ends_the_run_with_the_exit_code(obeying):
    with pytest.raises(WorkersLostError, match=r"died 3 times .*-9\)"):
        obeying.score([(QUESTION, "kill the supervisor")])


def test_a_weighted_reward_is_the_sum_of_its_parts_and_correctness_stays_raw():
    weights = {"correctness": 1.0, "format": 0.5, "length": -0.3, "reward_functions.characters": 0.01}
    with Verifier(rule="numeric", extraction="hash", weights=weights) as weighted:
        right, wrong, none = weighted.score([(QUESTION, "x" * 397 + "#42"), (QUESTION, "#41"), (QUESTION, "41")])
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


def test_the_numeric_path_imports_neither_sympy_nor_torch_and_starts_no_process():
    code = """
import sys, subprocess
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier
def refuse(*args, **kwargs): raise AssertionError("a process was started")
subprocess.Popen = refuse
with Verifier(rule="numeric", extraction="hash") as verifier:
    assert verifier.score([(RewardProblem("a", "", "20"), "#20")])[0].correct
assert not {"sympy", "torch", "math_verify", "mpmath"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
