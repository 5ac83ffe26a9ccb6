"""Parts of an algorithm in a user's file, each with an option, for the table of test_wiring.py."""

import torch
from torch import Tensor


def scaled(rewards: Tensor, *, scale: float = 1.0) -> Tensor:
    return scale * (rewards - rewards.mean(dim=1, keepdim=True))


def in_part(correct: Tensor, *, share: float = 1.0) -> Tensor:
    return torch.full(correct.shape, share)


def times(old_logprobs: Tensor, rollout_logprobs: Tensor, *, factor: float = 1.0) -> Tensor:
    return torch.full_like(old_logprobs, factor)
