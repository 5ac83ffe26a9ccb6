"""Builds the models of a run (policy, reference, critic), unsharded, or on the meta device and then sharded and
filled."""

import ctypes
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import PreTrainedModel

from dapo_lit.config import Config, ConfigError
from dapo_lit.config.trainer import Sharding, Trainer
from dapo_lit.errors import DamagedError
from dapo_lit.policy.lora import add_adapters, first_values, only_trained
from dapo_lit.policy.reference import Critic, Reference
from dapo_lit.policy.sharding import move_buffers, shard, shard_value_head
from dapo_lit.policy.wrap import wrap_layers
from dapo_lit.ranks import Ranks

Fill = Callable[[PreTrainedModel, torch.device], None]
"""Loads the shards of a model that was built without weights."""


@dataclass(frozen=True)
class Models:
    policy: PreTrainedModel
    reference: Reference | None
    """None: no KL term."""
    critic: Critic | None
    """None: no value model."""

    def initialise_adapters(self, seed: int) -> None:
        """Gives adapters, if there are any, their first values."""
        first_values(self.policy, seed)
        if self.critic is not None:
            first_values(self.critic, seed)


def put_together(policy: PreTrainedModel, config: Config) -> Models:
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
    critic = None
    if algorithm.critic is not None:
        critic = Critic(policy, shares_backbone=algorithm.critic.backbone == "shared")
    for model in (policy, critic.backbone if critic else None):
        if model is not None:
            wrap_layers(
                model,
                compile_by="inductor" if compiles(config.trainer) else None,
                # A sharded model has its casts from FSDP2.
                compute_in=dtype if config.trainer.strategy == "single" and dtype != policy.dtype else None,
                recomputed=config.trainer.activation_checkpointing,
            )
    return Models(policy, reference, critic)


def compiles(trainer: Trainer) -> bool:
    """True if layers and head are compiled: on a GPU. On a CPU that saves 2 to 4 % of a pass, too little for most runs.

    Compiled code hides the matrix products among which selective checkpointing chooses. TORCH_COMPILE_DISABLE=1 turns
    compilation off.
    """
    return uses_gpu(trainer) and trainer.activation_checkpointing != "selective"


def uses_gpu(trainer: Trainer) -> bool:
    return trainer.accelerator == "gpu" or (trainer.accelerator == "auto" and torch.cuda.is_available())


@dataclass(frozen=True)
class Meshes:
    """The device meshes of a run."""

    data: DeviceMesh
    """One dimension, or replicas x shards."""
    tensor: DeviceMesh | None
    """The devices that split each layer's matrices."""
    ranks: Ranks
    """The ranks that train on different data."""

    @classmethod
    def of(cls, settings: Sharding, ranks: Ranks, mesh: DeviceMesh) -> "Meshes":
        """`mesh`: Lightning's, data parallel x tensor parallel."""
        data = mesh["data_parallel"]
        if settings.replicas > 1:
            shape = (settings.replicas, ranks.size // settings.replicas)
            data = init_device_mesh(mesh.device_type, shape, mesh_dim_names=("replicate", "shard"))
        tensor = mesh["tensor_parallel"] if settings.tensor_parallel > 1 else None
        return cls(data, tensor, data_parallel(ranks, settings.tensor_parallel))


def shard_model(model: PreTrainedModel, settings: Sharding, meshes: Meshes) -> None:
    """Shards a model as the config says."""
    dtype = None if settings.dtype is None else getattr(torch, settings.dtype)
    shard(model, meshes.data, tensor_mesh=meshes.tensor, dtype=dtype, cpu_offload=settings.cpu_offload)


def data_parallel(ranks: Ranks, tensor: int) -> Ranks:
    """The ranks with the same part of each matrix as this one: they train on different data."""
    if tensor == 1:
        return ranks
    groups = [dist.new_group(list(range(part, ranks.size, tensor)), backend="gloo") for part in range(tensor)]
    return Ranks(ranks.rank // tensor, ranks.size // tensor, groups[ranks.rank % tensor])


def shard_and_fill(
    models: Models, config: Config, ranks: Ranks, mesh: DeviceMesh, fill: Fill | None, device: torch.device
) -> Ranks:
    """Shards all models and loads their weights; returns the ranks that train on different data.

    `mesh`: Lightning's, data parallel x tensor parallel. `device`: computes, while offloaded shards stay on the host.
    """
    settings = config.trainer.sharding
    meshes = Meshes.of(settings, ranks, mesh)
    sharded = [models.policy]
    copy = None if models.reference is None or models.reference.is_policy else models.reference.model
    if copy is not None:
        sharded.append(copy)
    if models.critic is not None:
        shard_value_head(models.critic.head, meshes.data, cpu_offload=settings.cpu_offload)
        if models.critic.backbone is not None:
            sharded.append(models.critic.backbone)
    for model in sharded:
        shard_model(model, settings, meshes)
        if fill is not None:
            fill(model, torch.device("cpu") if settings.cpu_offload else device)
    if copy is not None and settings.cpu_offload:  # the strategy does not know it
        move_buffers(copy, device)
    return meshes.ranks


def check_adapters(module: nn.Module, checkpoint: Mapping[str, Any], base: int | None) -> None:
    """Raises ConfigError if a checkpoint's adapters belong to another base, DamagedError if some are missing.

    base: fingerprint of the present base weights.
    """
    saved = checkpoint["dapo_lit"]["base_fingerprint"]
    if saved != base:
        raise ConfigError(
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
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGE - 1)
