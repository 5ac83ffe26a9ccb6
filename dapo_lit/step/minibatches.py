"""Which completions are in which mini-batch, by counters alone: the same on every rank and after every restart."""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from dapo_lit.config import Config


def minibatches(config: Config, groups: Tensor, step: int, epoch: int) -> Iterator[list[int]]:
    """Completions of whole groups, shuffled by a seed of (run, step, epoch). groups: [B]."""
    generator = torch.Generator().manual_seed(counter_seed(config.seed, step, epoch))
    order = torch.randperm(int(groups.max()) + 1, generator=generator)
    for chosen in order.split(config.algorithm.minibatch_prompts):
        yield torch.isin(groups, chosen).nonzero().flatten().tolist()


def counter_seed(*counters: int) -> int:
    """A 63-bit seed from counters, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(repr(counters).encode(), digest_size=8).digest()) >> 1
