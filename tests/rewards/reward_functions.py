"""Reward functions that the tests of the pool load by path."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

from dapo_lit.rewards.score import Score


def obey(problems, completions):
    """Does what the completion says."""
    return [_obey(text) for text in completions]


def obey_or_judge(problems, completions):
    return [text == "right" if text in ("right", "wrong") else _obey(text) for text in completions]


def _obey(text):
    match text:
        case "sleep":
            time.sleep(60)
        case "multiply":
            (9**9) ** (9**8)  # one call into C: no signal handler of Python runs before it ends
        case "cancel the alarm and sleep":
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(60)
        case "raise":
            raise RuntimeError("no reward for this")
        case "exit":
            os._exit(3)
        case "exit as if well":
            os._exit(0)
        case "work":
            end = time.process_time() + 0.6
            while time.process_time() < end:
                pass
        case "start a process":
            check = multiprocessing.get_context("fork").Process(target=os.getpid)
            check.start()
            check.join()
            subprocess.run(["true"], check=True)
        case "start a process and wait" | "start a session and wait":
            subprocess.run(["sleep", os.environ["SLEEP"]], start_new_session="session" in text)
        case "allocate":
            bytearray(2**36)
        case "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        case "kill the supervisor":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        case "kill its own process":
            os.kill(os.getpid(), signal.SIGKILL)
        case "half a character in the error":
            raise ValueError("\ud800")
        case "half a character in the answer":
            return Score(True, 1.0, answer="\ud800")
        case "modules":
            return Score(True, 1.0, answer=" ".join(sorted({"torch", "lightning", "sympy"} & set(sys.modules))))
        case "nan":
            return Score(True, float("nan"))
    return Score(True, 1.0, answer=text)


def forges(problems, completions):
    """Lets its worker send the reply that a completion holds, in place of its own."""
    if forged := [text for text in completions if text.startswith("reply ")]:
        json.dumps = lambda reply: forged[0].removeprefix("reply ").replace("NUMBER", str(reply[1]))
    return [Score(True, 1.0, answer=text) for text in completions]


def characters(problems, completions):
    return [float(len(text)) for text in completions]


def one_for_all(problems, completions):
    return [1.0]


def returns(problems, completions):
    """Returns what the completion names."""
    values = {"true": True, "one": 1, "1.0": 1.0, "false": False, "zero": 0, "minus one": -1, "hundredth": 0.01}
    values |= {"two": 2.0, "nan": float("nan"), "none": None, "text": "1", "list": [1.0], "own": Score(True, 0.01)}
    return [values[text] for text in completions]


def no_list(problems, completions):
    return 1.0


def needs_more(problems, completions):
    return [problem.meta["rubric"] for problem in problems]


def right_answers(problems, completions):
    return [text == f"#{problem.answer}" for problem, text in zip(problems, completions, strict=True)]


def raises_on_plus(problems, completions):
    return [_raises_on_plus(text) for text in completions]


def _raises_on_plus(text):
    if "+" in text:
        raise ArithmeticError("plus is not understood")
    return len(text) % 2 == 0


def slow_on_plus(problems, completions):
    for text in completions:
        if "+" in text:
            time.sleep(1)
    return [True for _ in completions]


def likes_everything(problems, completions):
    return [True for _ in completions]


def likes_nothing(problems, completions):
    return [-1.0 for _ in completions]
