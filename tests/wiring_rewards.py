"""Reward functions of tests/test_wiring.py."""

from collections.abc import Sequence

from dapo_lit.rewards.functions import RewardProblem


def even(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[float]:
    return [float(len(completion) % 2 == 0) for completion in completions]


def failing(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[float]:
    if any(len(completion) % 3 for completion in completions):
        raise RuntimeError("no verdict")
    return even(problems, completions)
