"""The processes of a run: collectives for CPU tensors and pickled values, and who samples what."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class LostRankError(RuntimeError):
    """Another rank of the run has died or hangs; names it."""


@dataclass(frozen=True)
class Ranks:
    """This process among `size`. A single process by default, for which every call returns its argument."""

    rank: int = 0
    size: int = 1
    group: Any = None
    """A process group for CPU tensors (gloo); None: the default one."""
    sampling_group: Any = None
    """Another one, for steps that are sampled while training exchanges over `group`."""
    per_engine: int = 1
    """Neighbouring ranks that share one engine: all make the same calls and get the same samples."""
    lost: Callable[[], str | None] = lambda: None
    """The other rank that has died or hangs, asked after a collective has failed; None: none has."""

    @property
    def of_sampling(self) -> "Ranks":
        """These ranks, exchanging over their group for sampling."""
        return replace(self, group=self.sampling_group)

    def apart(self, timeout: timedelta) -> "Ranks":
        """These ranks with a process group of their own, for a thread that exchanges while others do. A collective."""
        return replace(self, group=dist.new_group(backend="gloo", timeout=timeout))

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order, on every rank; pickled on the way."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value, group=self.group)
        return gathered

    def first(self, make: Callable[[], T]) -> T:
        """The value that rank 0 makes, on every rank."""
        return self.gather([make()] if self.rank == 0 else [])[0][0]

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the ranks, of a CPU tensor, in place; every rank gets the same bits."""
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def stack(self, values: Tensor) -> Tensor:
        """[size, ...]: every rank's CPU tensor; all have one shape."""
        if self.size == 1:
            return values[None]
        gathered = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(gathered, values.contiguous(), group=self.group)
        return torch.stack(gathered)

    def own(self, items: Sequence[Any]) -> list[int]:
        """Positions of the items (groups, prompts) that this rank's engine samples: every n-th of n engines."""
        return list(range(self.engine, len(items), self.num_engines))

    @property
    def engine(self) -> int:
        """This rank's engine."""
        return self.rank // self.per_engine

    @property
    def num_engines(self) -> int:
        return self.size // self.per_engine

    @property
    def leads_engine(self) -> bool:
        """True if this rank sends its engine's samples to the other ranks."""
        return self.rank % self.per_engine == 0


ALONE = Ranks()
