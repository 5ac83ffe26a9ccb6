"""Reads the weights of a checkpoint without the run that wrote it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from ablations.errors import DamagedError
from dapo_lit.runs.safe_loading import SafeNewStatePlanner, SafeReader, load_file, only_tensors

METADATA = "meta.pt"
"""In a sharded checkpoint: everything except the tensors of models and optimiser."""


def policy_weights(checkpoint: Path) -> dict[str, Tensor]:
    """The policy's state dict from a checkpoint of one or several processes, unsharded and on the CPU.

    A policy with adapters has only these in its checkpoints, not their base.

    Raises DamagedError: there is no policy in it, or it holds something other than a training state.
    """
    found: dict[str, Any] = {}
    if checkpoint.is_dir():
        with only_tensors(checkpoint):
            planner = SafeNewStatePlanner(keys={"state_dict"})
            _load_state_dict(found, storage_reader=SafeReader(checkpoint), planner=planner, no_dist=True)
    else:
        found = load_file(checkpoint)
    prefix = "policy."  # PPO's state dict has a critic too
    weights = _entry(found, "state_dict", checkpoint)
    policy = {name.removeprefix(prefix): t for name, t in weights.items() if name.startswith(prefix)}
    if not policy:
        raise DamagedError(f"{checkpoint} has no weights of a policy; {ANOTHER}")
    return policy


def base_fingerprint(checkpoint: Path) -> int | None:
    """Fingerprint of the base weights that a checkpoint's adapters belong to; None: it has no adapters.

    Raises DamagedError: it holds something other than a training state.
    """
    file = checkpoint / METADATA if checkpoint.is_dir() else checkpoint
    found: int | None = _entry(load_file(file), "dapo_lit", file).get("base_fingerprint")
    return found


def config_in(checkpoint: Path) -> dict[str, Any]:
    """The config as the module that wrote a checkpoint had it; plain values, unchecked.

    Raises DamagedError: it holds something other than a training state.
    """
    file = checkpoint / METADATA if checkpoint.is_dir() else checkpoint
    return _entry(_entry(load_file(file), "hyper_parameters", file), "config", file)


ANOTHER = "it is not a checkpoint of a run, or not all of one; choose another"

ENTRIES = ("dapo_lit", "loops", "RolloutDataModule")
"""Entries that training continues from, in addition to tensors."""


def check_entries(checkpoint: Path) -> None:
    """Raises DamagedError if training cannot continue from a checkpoint because part of it is missing, or a weight is
    not finite: no run writes such a state."""
    file = checkpoint / METADATA if checkpoint.is_dir() else checkpoint
    state = load_file(file)
    for key in ENTRIES if checkpoint.is_dir() else (*ENTRIES, "state_dict"):
        _entry(state, key, file)
    for name, value in state.get("state_dict", {}).items():
        if isinstance(value, Tensor) and value.is_floating_point() and not value.isfinite().all():
            raise DamagedError(f"{file} has a NaN or an infinite number in {name}; {ANOTHER}")


@contextmanager
def fitting(checkpoint: Path) -> Iterator[None]:
    """Within it, a state of weights of other shapes raises DamagedError; torch lists every tensor, a line each."""
    try:
        yield
    except RuntimeError as error:
        first, _, more = str(error).partition("\n\t")
        if "loading state_dict" not in first:
            raise
        reason = " ".join(more.partition("\n")[0].split())
        raise DamagedError(f"{checkpoint} does not fit the policy of the config ({reason}); {ANOTHER}") from None


def _entry(state: dict[str, Any], key: str, file: Path) -> dict[str, Any]:
    entry = state.get(key)
    if not isinstance(entry, dict):
        raise DamagedError(f"{file} has no entry {key!r}; {ANOTHER}")
    return entry
