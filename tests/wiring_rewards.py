"""Reward functions of tests/test_wiring.py."""

import time
from collections.abc import Sequence

from dapo_lit.rewards.functions import RewardProblem


def even(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[float]:
    return [float(len(completion) % 2 == 0) for completion in completions]


def never(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[float]:
    return [0.0] * len(completions)


def slow(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[float]:
    if any(completion.startswith(("1", "2", "3")) for completion in completions):
        time.sleep(0.2)
    return even(problems, completions)


def failing(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[float]:
    if any(len(completion) % 3 for completion in completions):
        raise RuntimeError("no verdict")
    return even(problems, completions)
