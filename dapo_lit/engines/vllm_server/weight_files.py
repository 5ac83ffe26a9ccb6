"""Weights in a folder for other processes: sharded safetensors, either complete or absent."""

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

    Adds at most one shard and one tensor to the sender's memory. The folder gets its final name once all of it is on
    disk; leftovers of a killed process are removed.
    """
    partial_folder = folder.with_name(f"{folder.name}.part")
    for old in (partial_folder, folder):
        if old.exists():
            shutil.rmtree(old)
    partial_folder.mkdir(parents=True)
    shard: dict[str, Tensor] = {}
    names: list[str] = []
    size = files = 0

    def flush() -> None:
        nonlocal size, files
        files += 1
        file = partial_folder / f"model-{files:05d}.safetensors"
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
    _force_to_disk(partial_folder)
    partial_folder.rename(folder)
    _force_to_disk(folder.parent)
    return names


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
