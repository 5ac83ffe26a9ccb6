"""Loads checkpoints without executing what is in them: a pickle may name any function, and here only listed types pass.

Checkpoints are shared, and everything that reads one goes through this module, the resumption of a run included.
"""

import io
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint.filesystem
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

from ablations.errors import DamagedError, UserError
from ablations.texts import MB, read_bytes
from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import Observations, PartialSample, Sample, SampleKey
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.records import CollectedStep, Completion, Group, OpenGroup

STATE_TYPES: list[Any] = [
    *(OpenGroup, CollectedStep, Group, Completion, Sample, SampleKey, PartialSample, Observations, Score, Problem),
    *(np.ndarray, np.dtype, np._core.multiarray._reconstruct, np._core.multiarray.scalar),  # type: ignore[attr-defined]
    *(getattr(np.dtypes, name) for name in np.dtypes.__all__),
    bytes,  # of an empty array
]
"""Types in a training state in addition to tensors, containers, numbers and strings: groups that are carried over,
a step sampled ahead, and the state of random generators. Building one calls nothing but its constructor."""

LIST_TYPES = {
    (found.__module__, found.__qualname__): found
    for room in (torch.distributed.checkpoint.metadata, torch.distributed.checkpoint.filesystem)
    for found in vars(room).values()
    if isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum))
} | {
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    # Of the folder that it was written to; it is not used.
    ("pathlib", "PosixPath"): PurePosixPath,
    ("collections", "OrderedDict"): OrderedDict,
}
"""Types in the list of tensors of a sharded checkpoint. torch.save does not write that list, so `weights_only` cannot
read it."""


@contextmanager
def safe_state_types(checkpoint: Path) -> Iterator[None]:
    """Within it, `weights_only=True` loads a training state.

    Raises DamagedError: the checkpoint holds something else, which was not executed.
    """
    try:
        with torch.serialization.safe_globals(STATE_TYPES):
            yield
    except pickle.UnpicklingError as error:
        raise DamagedError(_refusal(checkpoint, str(error))) from None


def loads_states() -> bool:
    """True within `safe_state_types`."""
    return Group in torch.serialization.get_safe_globals()


def check_state(state: Any, what: str) -> None:
    """Raises UserError for a part of a training state that could be written and not loaded again."""
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        with torch.serialization.safe_globals(STATE_TYPES):
            torch.load(file, weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError) as error:
        named = _named_type(str(error))
        reason = f"names {named}" if named else f"cannot be written ({str(error).partition(chr(10))[0]})"
        raise UserError(f"{what} {reason}: {STATE_MAY}") from None


STATE_MAY = "a checkpoint may have tensors, numbers, texts, lists, tuples and dicts, and no other type is loaded again"


def _named_type(message: str) -> str | None:
    named = re.search(r"GLOBAL ([\w.]+)", message)
    return named[1] if named else None


def _refusal(checkpoint: Path, message: str) -> str:
    named = _named_type(message)
    if named is None:
        reason = message.rpartition("WeightsUnpickler error:")[2].strip().partition("\n")[0] or "no state in it"
        return f"{checkpoint} cannot be read as a checkpoint ({reason}); choose another"
    return (
        f"{checkpoint} names {named}, which does not belong in a training state and could run any code; it was not "
        "loaded. Use a checkpoint from a source that you trust"
    )


def load_file(file: Path) -> dict[str, Any]:
    """The content of a file that torch.save wrote, on the CPU; its tensors are read when they are used.

    Raises DamagedError: it holds something other than a training state.
    """
    try:
        with safe_state_types(file):
            found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, EOFError) as error:  # cut, or no archive
        raise DamagedError(_refusal(file, str(error))) from None
    if not isinstance(found, dict):
        raise DamagedError(f"{file} holds no training state; choose another checkpoint")
    return found


class _ListUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        dtype = getattr(torch, name, None) if module == "torch" else None
        if found := LIST_TYPES.get((module, name), dtype if isinstance(dtype, torch.dtype) else None):
            return found
        raise pickle.UnpicklingError(f"GLOBAL {module}.{name} is not allowed")


class SafeReader(FileSystemReader):
    """Reads a sharded checkpoint; its list of tensors is a pickle too."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self._get_metadata_path(kwargs.get("rank")))
        try:
            found = _ListUnpickler(io.BytesIO(read_bytes(path, 1000 * MB))).load()
        except pickle.UnpicklingError as error:
            raise DamagedError(_refusal(path, str(error))) from None
        assert isinstance(found, Metadata)
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


@contextmanager
def only_tensors(checkpoint: Path) -> Iterator[None]:
    """Within it, a fault in a sharded checkpoint raises DamagedError, as a fault in a file does.

    Raises DamagedError: the checkpoint holds something that is not loaded, or it lacks tensors.
    """
    with suppress(FileNotFoundError):
        # dcp.load of torch 2.11 swallows what this raises.
        SafeReader(checkpoint).read_metadata()
    try:
        yield
    except CheckpointException as error:
        # It holds every rank's exception, and is no Exception itself.
        for fault, _ in error.failures.values():
            if isinstance(fault, DamagedError):
                raise fault from None
            if isinstance(fault, pickle.UnpicklingError):
                raise DamagedError(_refusal(checkpoint, str(fault))) from None
        reasons = "; ".join(f"{type(fault).__name__}: {fault}" for fault, _ in error.failures.values())
        raise DamagedError(f"{checkpoint} cannot be read ({reasons}); choose another checkpoint") from error


class _SafeBytes:
    """Entries that are not tensors, such as the optimiser's numbers."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)  # raises for anything but plain values
        value.seek(0)
        super().load_bytes(read_item, value)  # type: ignore[misc]


class SafePlanner(_SafeBytes, DefaultLoadPlanner):
    """Loads into a state dict that has everything already."""


class SafeNewStatePlanner(_SafeBytes, _EmptyStateDictLoadPlanner):
    """Loads into an empty state dict."""
