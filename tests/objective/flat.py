"""Flat batches, and the slow references' view of them: one Python list a completion."""

import random

import torch
from torch import Tensor


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def split(values: Tensor, lengths: list[int]) -> list[list[float]]:
    """[N] -> one list of floats a completion."""
    return [part.tolist() for part in values.split(lengths)]


def completions_of(lengths: list[int]) -> Tensor:
    """[N] the completion of each token."""
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def random_batch(seed: int, spread: float = 0.4) -> tuple[list[int], Tensor, Tensor, Tensor]:
    """Lengths, log-probs (with gradient), old log-probs, and one advantage a completion at each of its tokens."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    lengths = [1, *(rng.randint(1, 12) for _ in range(6))]
    old = -3 * torch.rand(sum(lengths), generator=generator, dtype=torch.float64) - 0.1
    logprobs = old + spread * torch.randn(sum(lengths), generator=generator, dtype=torch.float64)
    advantages = torch.randn(len(lengths), generator=generator, dtype=torch.float64)
    return lengths, logprobs.requires_grad_(), old, advantages[completions_of(lengths)]
