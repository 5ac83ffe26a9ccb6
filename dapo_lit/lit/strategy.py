"""Lightning's strategy for a run's processes and the policy's shards."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from dapo_lit.config.trainer import Trainer
from dapo_lit.policy.lora import only_trained
from dapo_lit.runs.checkpoint_weights import METADATA
from dapo_lit.runs.safe_loading import SafePlanner, SafeReader, load_file, only_tensors


class ShardedStrategy(ModelParallelStrategy):
    """Saves and loads shards; of a model with adapters, only the adapters."""

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """This rank's shards on their device; the writer copies them to the host."""
        return self._state()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Raises OSError for what a rank could not write, as on a full disk."""
        try:
            super().save_checkpoint(checkpoint, filepath, storage_options)
        except CheckpointException as error:
            rank, (cause, _) = next(iter(error.failures.items()))
            raise OSError(f"{filepath}: rank {rank} could not write its part ({cause})") from error

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Loads models and optimiser, and returns the rest of the checkpoint.

        Replaces Lightning 2.6.6's method, which asks for every tensor of the module and executes what is pickled.
        """
        assert self.model is not None
        assert self.lightning_module is not None
        folder = Path(checkpoint_path)
        module, (optimizer,) = self.model, self.optimizers
        state: dict[str, Any] = {"state_dict": self._state()}
        with only_tensors(folder):
            dcp.load(state, storage_reader=SafeReader(folder), planner=SafePlanner())
        module.load_state_dict(state["state_dict"], strict=self.lightning_module.strict_loading)
        state = {"optimizer_0": get_optimizer_state_dict(module, optimizer)}
        with only_tensors(folder):
            dcp.load(state, storage_reader=SafeReader(folder), planner=SafePlanner())
        set_optimizer_state_dict(module, optimizer, state["optimizer_0"], options=StateDictOptions(cpu_offload=True))
        return load_file(folder / METADATA)

    def _state(self) -> dict[str, Any]:
        """The module's shards; only the trained parameters of a module that is not loaded strictly."""
        assert self.model is not None
        assert self.lightning_module is not None
        strict = self.lightning_module.strict_loading
        options = StateDictOptions(ignore_frozen_params=not strict)
        state: dict[str, Any] = get_model_state_dict(self.model, options=options)
        return state if strict else only_trained(self.model, state)  # drops a tied head's second name


def trainer_arguments(settings: Trainer) -> dict[str, Any]:
    """The arguments of Lightning's Trainer that choose devices and strategy.

    Both parallel sizes are given, because ModelParallelStrategy's defaults do no data parallelism on one machine and
    leave gradients unreduced without an error.
    """
    arguments: dict[str, Any] = {"accelerator": settings.accelerator, "devices": settings.devices}
    if settings.strategy == "single":
        return arguments
    strategy = ShardedStrategy(
        data_parallel_size=settings.devices * settings.num_nodes,
        tensor_parallel_size=1,
        timeout=timedelta(minutes=settings.timeout_min),
    )
    return arguments | {
        "num_nodes": settings.num_nodes,
        "strategy": strategy,
        "plugins": [TorchElasticEnvironment()],  # the processes were started, as torchrun starts them
    }
