"""Reward functions and environments of tests/test_wiring.py."""

import time
from collections.abc import Sequence

from dapo_lit.rewards.functions import RewardProblem


def even(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[float]:
    return [float(len(completion) % 2 == 0) for completion in completions]


def failing(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[float]:
    if any(len(completion) % 3 for completion in completions):
        raise RuntimeError("no verdict")
    return even(problems, completions)


def says(problem, responses):
    """An environment: most turns get one to three characters."""
    said = "".join(responses)
    return None if len(said) % 5 == 4 else str(1000 + len(said))[-1 - len(said) % 3 :]


def says_more(problem, responses):
    return says(problem, responses) and "7777"


def slow(problem, responses):
    if len(responses[-1]) % 4 == 2:
        time.sleep(0.5)
    return None
