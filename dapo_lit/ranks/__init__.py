"""The processes of a run: collectives for CPU tensors and pickled values, and who samples what."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class LostRankError(RuntimeError):
    """Another rank of the run has died or hangs; names it."""


def raised_by_all(error: E) -> E:
    """Marks an error that every rank raises at this point, each in its own words: they can still save together."""
    error.__dict__["raised_by_all"] = True
    return error


def is_raised_by_all(error: BaseException) -> bool:
    return bool(error.__dict__.get("raised_by_all"))


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
    engine_group: Any = None
    """Those of this rank's engine (gloo), where there are several."""
    lost: Callable[[], str | None] = lambda: None
    """The other rank that has died or hangs, asked after a collective has failed; None: none has."""

    @property
    def of_sampling(self) -> "Ranks":
        """These ranks, exchanging over their group for sampling."""
        return replace(self, group=self.sampling_group)

    def sharing_engines(self, per_engine: int) -> "Ranks":
        """These ranks, of which neighbours share engines. A collective."""
        shares = per_engine > 1 and self.size > 1
        group = dist.new_subgroups(per_engine, backend="gloo")[0] if shares else None
        return replace(self, per_engine=per_engine, engine_group=group)

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order, on every rank; pickled on the way."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value, group=self.group)
        return gathered

    def exchange(self, payload: bytes) -> "Exchange":
        """Starts to send every one of several ranks' bytes to all of them. Each rank waits for one before the next."""
        return Exchange(self.group, self.size, payload)

    def any_of_engine(self, value: bool) -> bool:
        """True on all ranks of an engine if `value` is on one of them. A collective of these ranks alone."""
        if self.per_engine == 1:
            return value
        found = torch.tensor([value], dtype=torch.uint8, device="cpu")
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.engine_group)
        return bool(found)

    def from_leader(self, value: T) -> T:
        """The value of the first rank of this rank's engine, on all of them; pickled on the way. A collective of these
        ranks alone."""
        if self.per_engine == 1 or self.size == 1:
            return value
        sent = [value]
        dist.broadcast_object_list(sent, src=self.engine * self.per_engine, group=self.engine_group)
        return sent[0]

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


SINGLE_PROCESS = Ranks()


class Exchange:
    """Bytes under way between ranks that go on meanwhile: first how many each rank has, then all of them, padded."""

    def __init__(self, group: Any, size: int, payload: bytes) -> None:
        self._group, self._payload = group, payload
        self._lengths = torch.empty(size, 1, dtype=torch.int64, device="cpu")
        self._padded: Tensor | None = None  # [size, longest] uint8
        self._work = self._gather(self._lengths, torch.tensor([len(payload)], device="cpu"))

    def done(self) -> bool:
        """True if `wait` returns at once."""
        if self._padded is None and self._work.is_completed():
            self._send()
        return self._padded is not None and self._work.is_completed()

    def wait(self) -> list[bytes]:
        """Every rank's bytes, in rank order. Raises RuntimeError, as every collective, if a rank is lost."""
        if self._padded is None:
            self._send()
        self._work.wait()
        assert self._padded is not None
        lengths = self._lengths.flatten().tolist()
        return [row[:length].numpy().tobytes() for row, length in zip(self._padded, lengths, strict=True)]

    def _send(self) -> None:
        self._work.wait()
        longest = int(self._lengths.max())
        self._padded = torch.empty(len(self._lengths), longest, dtype=torch.uint8, device="cpu")
        own = torch.frombuffer(bytearray(self._payload.ljust(longest, b"\0")), dtype=torch.uint8)
        self._work = self._gather(self._padded, own)

    def _gather(self, rows: Tensor, own: Tensor) -> Any:
        return dist.all_gather(list(rows), own, group=self._group, async_op=True)
