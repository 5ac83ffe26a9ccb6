"""The weights in a checkpoint, without the run that wrote it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

METADATA = "meta.pt"
"""In a sharded checkpoint: everything but tensors of the models and the optimiser."""


def policy_weights(checkpoint: Path) -> dict[str, Tensor]:
    """The policy's state dict from a checkpoint of one process or of several, whole and on the CPU.

    Of a policy with adapters these alone: their base is not in a checkpoint.
    """
    if checkpoint.is_dir():
        found: dict[str, Any] = {}
        reader, planner = FileSystemReader(checkpoint), _EmptyStateDictLoadPlanner(keys={"state_dict"})
        _load_state_dict(found, storage_reader=reader, planner=planner, no_dist=True)
    else:  # the run's own file: it holds optimizer state and counters, which weights_only refuses
        found = torch.load(checkpoint, map_location="cpu", weights_only=False, mmap=True)
    prefix = "policy."  # PPO's has a critic too
    return {name.removeprefix(prefix): t for name, t in found["state_dict"].items() if name.startswith(prefix)}


def base_fingerprint(checkpoint: Path) -> int | None:
    """Of the weights that a checkpoint's adapters stand beside; None: it has none."""
    file = checkpoint / METADATA if checkpoint.is_dir() else checkpoint
    found: int | None = torch.load(file, map_location="cpu", weights_only=False, mmap=True)["dapo_lit"].get(
        "base_fingerprint"
    )
    return found
