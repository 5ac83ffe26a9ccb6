"""How a run's processes and the policy's shards are told to Lightning."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import PreTrainedModel

from dapo_lit.config.trainer import Sharding, Trainer
from dapo_lit.lit.processes import JoinedEnvironment
from dapo_lit.policy.sharding import shard
from dapo_lit.rollout.ranks import Ranks

METADATA = "meta.pt"
"""In a sharded checkpoint: everything but tensors of the models and the optimiser."""


def only_trained(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a checkpoint of adapters holds: the base is where it was, and does not change."""
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return {name: tensor for name, tensor in state.items() if name in trained}


class ShardedStrategy(ModelParallelStrategy):
    """Saves and loads in shards, and of a model with adapters these alone."""

    offloads = False
    """Shards lie in the host's memory."""
    saving_group: Any = None
    """A group of its own on which checkpoints are written in the background; None: they are written at once."""
    written: "Future[Any] | None" = None
    """Of the last one in the background, done when this rank has written its part."""

    def model_to_device(self) -> None:
        """Offloaded shards stay where they are; buffers go where the layers are computed."""
        if not self.offloads:
            super().model_to_device()
            return
        assert self.model is not None
        assert self.lightning_module is not None
        move_buffers(self.model, self.root_device)
        self.lightning_module._device = self.root_device

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """This rank's shards, where they are; what writes them copies them to the host."""
        return self._state()

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """As the shards."""
        assert self.model is not None
        state: dict[str, Any] = get_optimizer_state_dict(self.model, getattr(optimizer, "_optimizer", optimizer))
        return state

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """A folder with this rank's part; in the background everything is copied before this returns."""
        folder = Path(filepath)
        folder.mkdir(parents=True, exist_ok=True)
        state = {"state_dict": checkpoint.pop("state_dict"), "optimizer_0": checkpoint.pop("optimizer_states")[0]}
        if self.global_rank == 0:
            torch.save(checkpoint, folder / METADATA)
        if self.saving_group is None:
            dcp.save(state, checkpoint_id=folder)
        else:
            written = dcp.async_save(state, checkpoint_id=folder, process_group=self.saving_group)
            assert isinstance(written, Future)  # it is not asked to copy in the background as well
            self.written = written

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Reads what was saved into models and optimiser; the rest of it.

        Lightning 2.6.6 asks for every tensor of the module, drops fit's `weights_only=False` on the way to here, and
        the rest holds groups that are carried over.
        """
        assert self.model is not None
        assert self.lightning_module is not None
        module, (optimizer,) = self.model, self.optimizers
        state: dict[str, Any] = {"state_dict": self._state()}
        dcp.load(state, checkpoint_id=checkpoint_path)
        module.load_state_dict(state["state_dict"], strict=self.lightning_module.strict_loading)
        state = {"optimizer_0": get_optimizer_state_dict(module, optimizer)}
        dcp.load(state, checkpoint_id=checkpoint_path)
        set_optimizer_state_dict(module, optimizer, state["optimizer_0"], options=StateDictOptions(cpu_offload=True))
        rest: dict[str, Any] = torch.load(Path(checkpoint_path) / METADATA, weights_only=False)
        return rest

    def _state(self) -> dict[str, Any]:
        """Of a module that is not loaded strictly, the trained parameters alone."""
        assert self.model is not None
        assert self.lightning_module is not None
        strict = self.lightning_module.strict_loading
        options = StateDictOptions(ignore_frozen_params=not strict)
        state: dict[str, Any] = get_model_state_dict(self.model, options=options)
        return state if strict else only_trained(self.model, state)  # a tied head's second name is left otherwise


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


def move_buffers(model: nn.Module, device: torch.device) -> None:
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)


@dataclass(frozen=True)
class Meshes:
    """Over which devices shards lie."""

    data: DeviceMesh
    """One dimension, or copies x shards within one."""
    tensor: DeviceMesh | None
    """The devices that share each layer's matrices."""
    ranks: Ranks
    """Those that train on different data."""

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
    """Shards a model of the run as the config says."""
    dtype = None if settings.dtype is None else getattr(torch, settings.dtype)
    shard(model, meshes.data, tensor_mesh=meshes.tensor, dtype=dtype, cpu_offload=settings.cpu_offload)


def data_parallel(ranks: Ranks, tensor: int) -> Ranks:
    """This rank among those with the same part of each matrix: they hold different data, its tensor group the same."""
    if tensor == 1:
        return ranks
    groups = [dist.new_group(list(range(part, ranks.size, tensor)), backend="gloo") for part in range(tensor)]
    return Ranks(ranks.rank // tensor, ranks.size // tensor, groups[ranks.rank % tensor])
