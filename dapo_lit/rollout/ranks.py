"""The processes of a run as one: who generates which group, and how all come to hold the same step.

Every rank walks the same submission order and generates the groups that are its own. After each round the completions
are exchanged, so that every rank has every group with its scores. All that follows (keep rate, acceptance in
submission order, advantages, metrics, what is carried over) is then the same computation on the same data everywhere:
no rank has a quota, and no decision can differ between ranks. Scores are exchanged and never computed twice, because a
verifier's deadline may pass on one rank and not on another.

The price is memory on the host: a completion takes 12 bytes a token on the wire and some 70 in Python.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dapo_lit.rollout.records import Completion, Group

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among `size`; alone by default, and then every call returns what it was given."""

    rank: int = 0
    size: int = 1
    group: Any = None
    """A process group that moves tensors of the CPU (gloo); None: the default one."""
    per_engine: int = 1
    """Neighbouring ranks that sample with one engine, which all of them call alike: each has the same samples."""

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order, on every rank; pickled on the way."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value, group=self.group)
        return gathered

    def first(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, on every rank."""
        return self.gather([make()] if self.rank == 0 else [])[0][0]

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the ranks, of a CPU tensor, in place; every rank gets the same bits."""
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def stack(self, values: Tensor) -> Tensor:
        """[size, ...]: every rank's CPU tensor, of one shape."""
        if self.size == 1:
            return values[None]
        gathered = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(gathered, values.contiguous(), group=self.group)
        return torch.stack(gathered)

    def own(self, items: Sequence[Any]) -> list[int]:
        """Positions of the items (groups, prompts) that this rank's engine samples: every n-th of n engines."""
        return list(range(self.rank // self.per_engine, len(items), self.size // self.per_engine))

    @property
    def tells(self) -> bool:
        """Whether it is this rank that tells the others what its engine sampled."""
        return self.rank % self.per_engine == 0

    def exchange(self, groups: Sequence[Group]) -> None:
        """Fills in the completions of the groups that other ranks generated, in place."""
        if self.size == 1:
            return
        told = self.own(groups) if self.tells else []
        mine = {position: packed(groups[position].completions) for position in told}
        for part in self.gather(mine):
            for position, completions in part.items():
                groups[position].completions = unpacked(completions)


ALONE = Ranks()

Packed = tuple[list[Completion], np.ndarray, np.ndarray, np.ndarray]


def packed(completions: Sequence[Completion]) -> Packed:
    """Completions with their tokens as arrays: (without tokens, lengths, ids, log-probs)."""
    bare = [replace(c, sample=replace(c.sample, response_ids=(), rollout_logprobs=())) for c in completions]
    ids = np.array([i for c in completions for i in c.sample.response_ids], dtype=np.int32)
    logprobs = np.array([p for c in completions for p in c.sample.rollout_logprobs], dtype=np.float64)
    return bare, np.array([c.num_tokens for c in completions], dtype=np.int64), ids, logprobs


def unpacked(content: Packed) -> list[Completion]:
    """What `packed` was given; the floats are the same bits."""
    bare, lengths, ids, logprobs = content
    ends = lengths.cumsum()[:-1]
    return [
        replace(c, sample=replace(c.sample, response_ids=tuple(i.tolist()), rollout_logprobs=tuple(p.tolist())))
        for c, i, p in zip(bare, np.split(ids, ends), np.split(logprobs, ends), strict=True)
    ]
