"""Parts of an algorithm in a user's file, each with an option, for the table of test_wiring.py."""

import torch
from torch import Tensor

from ablations.techniques import Condition, Technique


def scaled(rewards: Tensor, *, scale: float = 1.0) -> Tensor:
    return scale * (rewards - rewards.mean(dim=1, keepdim=True))


def in_part(correct: Tensor, *, share: float = 1.0) -> Tensor:
    return torch.full(correct.shape, share)


def times(old_logprobs: Tensor, rollout_logprobs: Tensor, *, factor: float = 1.0) -> Tensor:
    return torch.full_like(old_logprobs, factor)


def raised(coefficient: float, entropy: float, *, to: float = 0.1) -> tuple[float, float]:
    return coefficient, to


def halved(advantages: Tensor, completions: Tensor) -> Tensor:
    return torch.where(advantages > 0, advantages / 2, advantages)


def short_only(lengths: Tensor, truncated: Tensor, correct: Tensor) -> Tensor:
    return (lengths < 5) | correct


HALVED = Technique(
    "halved", section="these tests", equation="", on="positive advantages are halved", off="they are not",
    label="halved positives", short="halved", colour="#9c9ca1",
    condition=Condition("rollout/groups_mixed_frac", "groups mixed", 0.1, lever="Easier problems mix more."),
    advantages=halved,
)  # fmt: skip
SHORT = Technique(
    "short_only", section="these tests", equation="", on="long wrong answers carry no loss", off="they do",
    label="short only", short="short", colour="#9c9ca1",
    condition=Condition("rollout/length_cv", "spread of lengths", 0.0, share=False), keeps=short_only,
)  # fmt: skip
