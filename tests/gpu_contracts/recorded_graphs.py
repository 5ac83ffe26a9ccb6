"""CUDA graphs on the CPU: operations are recorded with the addresses that they read and write, and repeated there.

As on a GPU, a capture runs nothing: memory outside stays as it is, and what an operation made is meaningless until the
graph is replayed. What a capture made belongs to its graph; of all else the graph knows only the address, and a replay
that reads freed memory fails. An operation that needs the host fails at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from test_no_waiting import INDEXING, WAITS
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from dapo_lit.engines.torch_engine import cuda_graphs


class Address:
    """A tensor outside the graph; it does not keep its memory."""

    def __init__(self, tensor: Tensor) -> None:
        self._memory = StorageWeakRef(tensor.untyped_storage())
        self._view = (tensor.storage_offset(), tensor.shape, tensor.stride())
        self._dtype = tensor.dtype

    def tensor(self) -> Tensor:
        memory = torch.UntypedStorage._new_with_weak_ptr(self._memory.cdata)
        assert memory is not None, "a graph reads or writes memory that was freed"
        return torch.empty(0, dtype=self._dtype).set_(memory, *self._view)


@dataclass
class Operation:
    call: Any
    args: Any
    kwargs: Any
    made: list[Tensor]
    """Its results, in memory of the graph; none of an operation that writes into its arguments."""

    def run(self) -> None:
        args, kwargs = tree_map(lambda x: x.tensor() if isinstance(x, Address) else x, (self.args, self.kwargs))
        found = self.call(*args, **kwargs)
        if self.made:
            for place, result in zip(self.made, tree_leaves(found), strict=True):
                place.copy_(result)


class Recording(TorchDispatchMode):
    """A capture under way."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._own: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        masks = func.overloadpacket in INDEXING and any(i is not None and i.dtype == torch.bool for i in args[1])
        if func.overloadpacket in WAITS or masks:
            raise RuntimeError(f"{func}: operation not permitted when stream is capturing")
        written = [
            kwargs.get(argument.name, args[position] if position < len(args) else None)
            for position, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if written:
            self._note(func, args, kwargs, [])
            return written[0]
        given = {memory(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        found = func(*args, **kwargs)
        made = [x for x in tree_leaves(found) if isinstance(x, Tensor) and memory(x) not in given]
        if made:  # otherwise it is a view
            self._note(func, args, kwargs, made)
            for tensor in made:
                self._own.add(memory(tensor))
                tensor.fill_(torch.nan if tensor.dtype.is_floating_point else 0)
        return found

    def _note(self, func: Any, args: Any, kwargs: Any, made: list[Tensor]) -> None:
        def known(x: Any) -> Any:
            return Address(x) if isinstance(x, Tensor) and memory(x) not in self._own else x

        self.operations.append(Operation(func, *tree_map(known, (args, kwargs)), made))


def memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class RecordedGraph:
    """Stands for torch.cuda.CUDAGraph."""

    made: ClassVar[list["RecordedGraph"]] = []

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.replays = 0
        self.made.append(self)

    def replay(self) -> None:
        self.replays += 1
        for operation in self.operations:
            operation.run()


@contextmanager
def capture(graph: RecordedGraph, *, pool: object, capture_error_mode: str) -> Iterator[None]:
    """Stands for torch.cuda.graph."""
    assert pool is not None
    assert capture_error_mode == "thread_local"
    with Recording() as recording:
        yield
    graph.operations = recording.operations


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """All graphs that are captured in the test, on the CPU."""
    found: list[RecordedGraph] = []
    monkeypatch.setattr(RecordedGraph, "made", found)
    monkeypatch.setattr(cuda_graphs, "can_capture", lambda device: True)
    for name, stands_in in {
        "CUDAGraph": RecordedGraph,
        "graph": capture,
        "graph_pool_handle": object,
        "current_stream": lambda: SimpleNamespace(synchronize=lambda: None),
        "stream": lambda stream: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stands_in)
    return found
