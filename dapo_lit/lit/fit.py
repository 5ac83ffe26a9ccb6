"""Puts module, data, callbacks and Lightning's trainer together and trains, on every rank; the strategy of shards."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from lightning import Callback, Trainer
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.callbacks import (
    Checkpoint,
    DeviceStatsMonitor,
    EarlyStopping,
    LambdaCallback,
    LearningRateMonitor,
)
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from ablations.ending import stopped_by_signals
from dapo_lit.build.components import RunComponents
from dapo_lit.build.models import keep_freed_memory
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.trainer import Trainer as TrainerConfig
from dapo_lit.lit.callbacks import Checkpoints, Recorder
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.module import DAPOModule
from dapo_lit.lit.processes import StartPoint, lost_rank_named
from dapo_lit.lit.step_clock import StepClock
from dapo_lit.log import log
from dapo_lit.policy.lora import only_trained
from dapo_lit.ranks import Ranks
from dapo_lit.rollout.step_collection import StopRequestedError
from dapo_lit.runs.checkpoint_weights import METADATA, check_entries, fitting
from dapo_lit.runs.extensions import built
from dapo_lit.runs.loggers import Loggers
from dapo_lit.runs.preemption import StopSignal
from dapo_lit.runs.safe_loading import (
    SafePlanner,
    SafeReader,
    check_state,
    load_file,
    only_tensors,
    safe_state_types,
)
from dapo_lit.step.optimizer import begin_states


def build_trainer(config: Config, callbacks: list[Callback], devices: dict[str, Any] | None = None) -> Trainer:
    """Lightning's trainer; `devices` replaces the arguments that choose devices and strategy."""
    keep_freed_memory()
    return Trainer(
        **(trainer_arguments(config.trainer) if devices is None else devices),
        # The loader's length bounds the run: max_steps is checked between batches only.
        max_epochs=1,
        callbacks=callbacks,
        logger=False,
        # Lightning would add one of its own.
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        # The recorder evaluates, before the first step and after the last as well.
        limit_val_batches=0,
        use_distributed_sampler=False,
    )


def own_callbacks(config: Config, run: Path) -> list[Callback]:
    found: list[Callback] = []
    for name, settings in config.callbacks.items():
        found.append(built(f"callbacks.{name}", settings, run))
        if not isinstance(found[-1], Callback):
            raise ConfigError(f"callbacks.{name}: {settings['_target_']} is not a lightning.Callback")
        # Arms that stop at different steps cannot be compared at one budget.
        if isinstance(found[-1], EarlyStopping):
            raise ConfigError(
                f"callbacks.{name}: EarlyStopping has nothing to act on: a run of the command ends with its budget, so "
                "that arms stay comparable; set budget.steps or budget.tokens_generated, or use a "
                "Trainer of your own (docs/library.md)"
            )
        if isinstance(found[-1], (LearningRateMonitor, DeviceStatsMonitor)):
            raise ConfigError(
                f"callbacks.{name}: {settings['_target_']} writes to a logger of Lightning's Trainer, and a run of the "
                "command has none; optim/lr, memory/peak_gb and perf/* are in metrics.jsonl and in the run's logger"
            )
        # A type that comes into it later is seen where the first checkpoint with it is written.
        check_state(found[-1].state_dict(), f"callbacks.{name}: its state")
    return found


def fit(
    config: Config, parts: RunComponents, start: StartPoint, loggers: Loggers | None, ranks: Ranks
) -> tuple[DAPOModule, StopSignal]:
    """Trains; `loggers` is given on rank 0 only."""
    stop, clock = StopSignal(), StepClock()
    datamodule = RolloutDataModule(config, parts, stop, ranks, stop.hurries)
    callbacks = [
        # Before the evaluation of step 0, which the recorder does: until then the handlers are Lightning's.
        LambdaCallback(on_train_start=lambda *_: stop.install(config.trainer.grace_s)),
        Recorder(config, start.folder, loggers, ranks, clock),
    ]
    own = own_callbacks(config, start.folder.path)
    # After the user's own: a checkpoint has their state of its step.
    trainer = build_trainer(config, [*callbacks, *own, Checkpoints(config, start.folder, stop, ranks, clock)])
    sharded = config.trainer.strategy == "fsdp"
    module = DAPOModule(config, lambda: parts.policy, ranks, parts.fill if sharded else None)
    # About 1 ms a metric, which a step of a tiny policy notices.
    module.logs = bool(own)
    if start.checkpoint:
        # Before the engine starts: a checkpoint that lacks a part is refused here, in one line.
        check_entries(start.checkpoint)
    if start.checkpoint and ranks.rank == 0:
        log.info(f"continuing from {start.checkpoint}")
    try:
        restored = continuing(start.checkpoint) if start.checkpoint else nullcontext()
        with stopped_by_signals(), lost_rank_named(ranks.lost), restored:
            trainer.fit(module, datamodule=datamodule, ckpt_path=start.checkpoint, weights_only=True)
    except (StopRequestedError, SIGTERMException):
        # The checkpoint is written, the half-collected step dropped.
        # The signal may have reached another rank only; or Lightning, before `install`, which then ends the first step
        # with a SystemExit of code 0.
        stop.requested = True
    except MisconfigurationException as error:
        if not own:
            raise
        raise ConfigError(f"callbacks ({', '.join(config.callbacks)}): {' '.join(str(error).split())}") from None
    return module, stop


@contextmanager
def continuing(checkpoint: Path) -> Iterator[None]:
    """Within it, a training state is loaded without executing what is in it; one that does not fit is named."""
    with fitting(checkpoint), safe_state_types(checkpoint):
        yield


class ShardedStrategy(ModelParallelStrategy):
    """Saves and loads shards; of a model with adapters, only the adapters."""

    def setup_optimizers(self, trainer: Trainer) -> None:
        super().setup_optimizers(trainer)
        # torch makes up the state of an optimizer without any, by a step, wherever it is saved or loaded: the first
        # update would then be the second. Of one that has trained the critic only, the policy's would not be saved.
        for optimizer in self.optimizers:
            begin_states(optimizer)

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
        # Drops a tied head's second name.
        return state if strict else only_trained(self.model, state)


def trainer_arguments(settings: TrainerConfig) -> dict[str, Any]:
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
        # The processes were started, as torchrun starts them.
        "plugins": [TorchElasticEnvironment()],
    }
