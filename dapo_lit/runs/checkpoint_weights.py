"""Reads the weights of a checkpoint without the run that wrote it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

METADATA = "meta.pt"
"""In a sharded checkpoint: everything except the tensors of models and optimiser."""


def policy_weights(checkpoint: Path) -> dict[str, Tensor]:
    """The policy's state dict from a checkpoint of one or several processes, unsharded and on the CPU.

    A policy with adapters has only these in its checkpoints, not their base.
    """
    if checkpoint.is_dir():
        found: dict[str, Any] = {}
        reader, planner = FileSystemReader(checkpoint), _EmptyStateDictLoadPlanner(keys={"state_dict"})
        _load_state_dict(found, storage_reader=reader, planner=planner, no_dist=True)
    else:  # a file that this package wrote; weights_only refuses its counters
        found = torch.load(checkpoint, map_location="cpu", weights_only=False, mmap=True)
    prefix = "policy."  # PPO's state dict has a critic too
    return {name.removeprefix(prefix): t for name, t in found["state_dict"].items() if name.startswith(prefix)}


def base_fingerprint(checkpoint: Path) -> int | None:
    """Fingerprint of the base weights that a checkpoint's adapters belong to; None: it has no adapters."""
    file = checkpoint / METADATA if checkpoint.is_dir() else checkpoint
    found: int | None = torch.load(file, map_location="cpu", weights_only=False, mmap=True)["dapo_lit"].get(
        "base_fingerprint"
    )
    return found
