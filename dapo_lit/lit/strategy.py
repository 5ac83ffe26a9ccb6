"""How a run's processes and the policy's shards are told to Lightning."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import PreTrainedModel

from dapo_lit.config import Config
from dapo_lit.config.trainer import Trainer
from dapo_lit.lit.processes import JoinedEnvironment
from dapo_lit.policy.sharding import shard
from dapo_lit.rollout.ranks import Ranks


class ShardedStrategy(ModelParallelStrategy):
    """Loads the run's own checkpoints whole: Lightning 2.6.6 drops fit's `weights_only=False` on the way to a strategy
    that restores after its setup, and their metadata hold groups that are carried over."""

    offloads = False
    """Shards lie in the host's memory."""

    def model_to_device(self) -> None:
        """Offloaded shards stay where they are; buffers go where the layers are computed."""
        if not self.offloads:
            super().model_to_device()
            return
        assert self.model is not None
        assert self.lightning_module is not None
        for module in self.model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(self.root_device)
        self.lightning_module._device = self.root_device

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        return super().load_checkpoint(checkpoint_path, weights_only=False)


def trainer_arguments(settings: Trainer) -> dict[str, Any]:
    """The arguments of Lightning's Trainer that say where to compute.

    ModelParallelStrategy's own defaults do no data parallelism on one machine, and gradients then go unreduced without
    an error: both sizes are given.
    """
    arguments: dict[str, Any] = {"accelerator": settings.accelerator, "devices": settings.devices}
    if settings.strategy == "single":
        return arguments
    tensor = settings.sharding.tensor_parallel
    strategy = ShardedStrategy(
        data_parallel_size=settings.devices * settings.num_nodes // tensor,
        tensor_parallel_size=tensor,
        timeout=timedelta(minutes=settings.timeout_min),
    )
    strategy.offloads = settings.sharding.cpu_offload
    return arguments | {
        "num_nodes": settings.num_nodes,
        "strategy": strategy,
        "plugins": [JoinedEnvironment(settings.devices)],
    }


def shard_policy(model: PreTrainedModel, config: Config, ranks: Ranks, mesh: DeviceMesh) -> Ranks:
    """Shards the policy as the config says; the ranks that train on different data.

    `mesh`: Lightning's, data parallel x tensor parallel.
    """
    settings = config.trainer.sharding
    tensor_mesh = mesh["tensor_parallel"] if settings.tensor_parallel > 1 else None
    data_mesh = mesh["data_parallel"]
    if settings.replicas > 1:
        shape = (settings.replicas, ranks.size // settings.replicas)
        data_mesh = init_device_mesh(mesh.device_type, shape, mesh_dim_names=("replicate", "shard"))
    dtype = None if settings.dtype is None else getattr(torch, settings.dtype)
    shard(model, data_mesh, tensor_mesh=tensor_mesh, dtype=dtype, cpu_offload=settings.cpu_offload)
    return data_parallel(ranks, settings.tensor_parallel)


def data_parallel(ranks: Ranks, tensor: int) -> Ranks:
    """This rank among those with the same part of each matrix: they hold different data, its tensor group the same."""
    if tensor == 1:
        return ranks
    groups = [dist.new_group(list(range(part, ranks.size, tensor)), backend="gloo") for part in range(tensor)]
    return Ranks(ranks.rank // tensor, ranks.size // tensor, groups[ranks.rank % tensor])
