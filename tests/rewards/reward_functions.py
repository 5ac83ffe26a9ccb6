"""Reward functions that the tests of the pool load by path."""

import os
import signal
import sys
import time

from dapo_lit.rewards.score import Score


def echo(problems, completions):
    return [
        Score(
            correct=text == problem.answer,
            value=float(len(completions)),
            answer=f"{problem.id} {problem.meta['level']}",
        )
        for problem, text in zip(problems, completions, strict=True)
    ]


def obey(problems, completions):
    """Does what the completion says."""
    return [_obey(text) for text in completions]


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
        case "allocate":
            bytearray(2**36)
        case "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        case "kill the fork server":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        case "modules":
            return Score(True, 1.0, answer=" ".join(sorted({"torch", "lightning", "sympy"} & set(sys.modules))))
        case "nan":
            return Score(True, float("nan"))
    return Score(True, 1.0, answer=text)


def characters(problems, completions):
    return [float(len(text)) for text in completions]


def too_few(problems, completions):
    return []
