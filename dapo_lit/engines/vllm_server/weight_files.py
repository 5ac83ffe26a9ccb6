"""Weights in a folder that other processes read: safetensors in shards, and whole or not there at all."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


@torch.no_grad()
def write_weights(
    folder: Path, named_tensors: Iterable[tuple[str, Tensor]], *, dtype: torch.dtype, shard_bytes: int
) -> list[str]:
    """Writes `folder` with a file for every `shard_bytes` of tensors, in `dtype`; the names that were written.

    At most one shard and one tensor are in memory beside the sender's own. The folder gets its name when all of it is
    on disk; what a killed process left under its temporary name is removed.
    """
    beside = folder.with_name(f"{folder.name}.part")
    for old in (beside, folder):
        if old.exists():
            shutil.rmtree(old)
    beside.mkdir(parents=True)
    shard: dict[str, Tensor] = {}
    names: list[str] = []
    size = files = 0

    def flush() -> None:
        nonlocal size, files
        files += 1
        file = beside / f"model-{files:05d}.safetensors"
        save_file(shard, file, metadata={"format": "pt"})
        _force_to_disk(file)
        shard.clear()
        size = 0

    for name, tensor in named_tensors:
        # A copy always: the sender may free or reuse a tensor once the next is asked for.
        copy = tensor.detach().to("cpu", dtype, copy=True).contiguous()
        if shard and size + copy.nbytes > shard_bytes:
            flush()
        shard[name] = copy
        size += copy.nbytes
        names.append(name)
    if shard:
        flush()
    _force_to_disk(beside)
    beside.rename(folder)
    _force_to_disk(folder.parent)
    return names


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
