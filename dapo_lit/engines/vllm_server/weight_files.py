"""Weights in a folder for other processes: sharded safetensors, either complete or absent."""

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from dapo_lit.files import replacing

SHARD_BYTES = 1 << 30
"""Of a file of weights, which is what is in memory of them at once."""


@torch.no_grad()
def write_weights(folder: Path, named_tensors: Iterable[tuple[str, Tensor]], *, dtype: torch.dtype) -> list[str]:
    """Writes `folder` with a file for every SHARD_BYTES of tensors, in `dtype`; the names that were written.

    The folder gets its final name once all of it is on disk; leftovers of a killed process are removed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing(folder) as draft:
        draft.mkdir()
        return _write_shards(draft, named_tensors, dtype)


def _write_shards(folder: Path, named_tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> list[str]:
    shard: dict[str, Tensor] = {}
    names: list[str] = []
    size = files = 0

    def flush() -> None:
        nonlocal size, files
        files += 1
        save_file(shard, folder / f"model-{files:05d}.safetensors", metadata={"format": "pt"})
        shard.clear()
        size = 0

    for name, tensor in named_tensors:
        # A copy always: the sender may free or reuse a tensor once the next is asked for.
        copy = tensor.detach().to("cpu", dtype, copy=True).contiguous()
        if shard and size + copy.nbytes > SHARD_BYTES:
            flush()
        shard[name] = copy
        size += copy.nbytes
        names.append(name)
    if shard:
        flush()
    return names
