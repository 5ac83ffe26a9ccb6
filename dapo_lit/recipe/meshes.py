"""Device meshes for the shards of a run's models."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import PreTrainedModel

from dapo_lit.config.trainer import Sharding
from dapo_lit.policy.sharding import shard
from dapo_lit.ranks import Ranks


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
