"""Builds the models of a run (policy, reference, critic), unsharded, or on the meta device and then sharded and
filled."""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from ablations.errors import DamagedError
from dapo_lit.config import Config
from dapo_lit.config.trainer import Trainer
from dapo_lit.policy.lora import add_adapters, only_trained
from dapo_lit.policy.reference import Critic, Reference
from dapo_lit.policy.sharding import shard, shard_value_head
from dapo_lit.policy.wrap import wrap_layers

Fill = Callable[[PreTrainedModel, torch.device], None]
"""Loads the shards of a model that was built without weights."""


@dataclass(frozen=True)
class Models:
    policy: PreTrainedModel
    reference: Reference | None
    """None: no KL term."""
    critic: Critic | None
    """None: no value model."""


def build_models(policy: PreTrainedModel, config: Config) -> Models:
    """Builds the models of the config around a policy, which may be on the meta device.

    Raises ValueError: adapters are asked for on matrices that the policy does not have.
    """
    algorithm, lora = config.algorithm, config.policy.lora
    if lora is not None:
        add_adapters(policy, rank=lora.rank, alpha=lora.alpha)
    dtype: torch.dtype = getattr(torch, config.compute_dtype)
    reference = Reference(policy) if algorithm.kl.beta else None
    if reference is not None and not reference.is_policy:
        for parameter in reference.model.parameters():  # never updated, so it is stored in the dtype of its computation
            parameter.data = parameter.data.to(dtype)
    critic = None if algorithm.critic is None else Critic(policy)
    for model in (policy, critic.backbone if critic else None):
        if model is not None:
            wrap_layers(
                model,
                compiles=compiles(config),
                # A sharded model has its casts from FSDP2.
                compute_in=dtype if config.trainer.strategy == "single" and dtype != policy.dtype else None,
                recomputes=config.trainer.activation_checkpointing == "full",
            )
    return Models(policy, reference, critic)


def compiles(config: Config) -> bool:
    """True if the layers and the head's arithmetic are compiled: on a GPU in longer runs, unless the config says."""
    return config.compiles(uses_gpu(config.trainer))


def uses_gpu(trainer: Trainer) -> bool:
    return trainer.accelerator == "gpu" or (trainer.accelerator == "auto" and torch.cuda.is_available())


def shard_and_fill(models: Models, config: Config, mesh: DeviceMesh, fill: Fill | None, device: torch.device) -> None:
    """Shards all models over `mesh` and loads their weights."""
    dtype = config.trainer.sharding.dtype
    sharded = [models.policy]
    if models.reference is not None and not models.reference.is_policy:
        sharded.append(models.reference.model)
    if models.critic is not None:
        shard_value_head(models.critic.head, mesh)
        sharded.append(models.critic.backbone)
    for model in sharded:
        shard(model, mesh, dtype=None if dtype is None else getattr(torch, dtype))
        if fill is not None:
            fill(model, device)


def check_adapters(module: nn.Module, checkpoint: Mapping[str, Any], base: int | None) -> None:
    """Raises DamagedError if a checkpoint's adapters belong to another base policy, or some are missing.

    base: fingerprint of the present base weights.
    """
    saved = checkpoint["dapo_lit"]["base_fingerprint"]
    if saved != base:
        raise DamagedError(
            f"the checkpoint's adapters belong to another base policy (fingerprint {saved}; the base of policy.path or "
            f"the task has {base}); restore the policy that the run started with"
        )
    if "state_dict" in checkpoint:  # a sharded one was already read, which reports missing tensors
        lacking = only_trained(module, dict(module.named_parameters())).keys() - checkpoint["state_dict"].keys()
        if lacking:
            raise DamagedError(f"the checkpoint lacks {len(lacking)} trained tensors, such as {min(lacking)}")


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""
_LARGE = 1 << 30
"""Bytes of a block that is still returned at once; twice as much may be free at the end of the heap."""


def keep_freed_memory() -> None:
    """Has glibc keep memory that a step has freed, because the next step asks for as much again.

    By default it returns large blocks to the system at once, and the first use of each page of a new block costs more
    than the arithmetic on it. Peak memory stays what it was, memory between peaks does not fall. Other C libraries and
    GPUs are not affected.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGE - 1)
