"""Puts module, data, callbacks and Lightning's trainer together and trains, on every rank."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from lightning import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, LambdaCallback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from dapo_lit.build.models import keep_freed_memory
from dapo_lit.build.parts import Parts
from dapo_lit.config import Config, ConfigError
from dapo_lit.lit.callbacks import Recorder
from dapo_lit.lit.checkpoints import Checkpoints
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.module import DAPOModule
from dapo_lit.lit.processes import StartPoint, lost_rank_named
from dapo_lit.lit.strategy import trainer_arguments
from dapo_lit.ranks import Ranks
from dapo_lit.rollout.step_collection import StopRequestedError
from dapo_lit.runs.checkpoint_weights import check_entries
from dapo_lit.runs.extensions import built
from dapo_lit.runs.loggers import Loggers
from dapo_lit.runs.preemption import StopSignal
from dapo_lit.runs.safe_loading import only_state


def build_trainer(config: Config, callbacks: list[Callback], devices: dict[str, Any] | None = None) -> Trainer:
    """Lightning's trainer; `devices` replaces the arguments that choose devices and strategy."""
    keep_freed_memory()
    return Trainer(
        **(trainer_arguments(config.trainer) if devices is None else devices),
        max_epochs=1,  # the loader's length bounds the run: max_steps is checked between batches only
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,  # the recorder evaluates, before the first step and after the last as well
        use_distributed_sampler=False,
    )


def own_callbacks(config: Config, run: Path) -> list[Callback]:
    """The callbacks of the config."""
    found: list[Callback] = []
    for name, settings in config.callbacks.items():
        found.append(built(f"callbacks.{name}", settings, run))
        if not isinstance(found[-1], Callback):
            raise ConfigError(f"callbacks.{name}: {settings['_target_']} is not a lightning.Callback")
        if isinstance(found[-1], EarlyStopping):
            raise ConfigError(
                f"callbacks.{name}: EarlyStopping has nothing to act on: a run of the command ends with its budget, so "
                "that arms stay comparable; set budget.steps or budget.tokens_generated, or use a "
                "Trainer of your own (docs/library.md)"
            )
    return found


def fit(
    config: Config, parts: Parts, start: StartPoint, loggers: Loggers | None, ranks: Ranks
) -> tuple[DAPOModule, StopSignal]:
    """Trains; `loggers` is given on rank 0 only."""
    stop = StopSignal()
    datamodule = RolloutDataModule(config, parts, stop, ranks)
    callbacks = [
        # Before the evaluation of step 0, which the recorder does: until then the handlers are Lightning's.
        LambdaCallback(on_train_start=lambda *_: stop.install(config.trainer.grace_s)),
        Recorder(config, start.folder, loggers, ranks),
        Checkpoints(config, start.folder, stop, ranks),
    ]
    own = own_callbacks(config, start.folder.path)
    trainer = build_trainer(config, callbacks + own)
    sharded = config.trainer.strategy == "fsdp"
    module = DAPOModule(config, lambda: parts.policy, ranks, parts.fill if sharded else None)
    module.logs = bool(own)
    if start.checkpoint:
        check_entries(start.checkpoint)
    if start.checkpoint and ranks.rank == 0:
        print(f"continuing from {start.checkpoint}")
    try:
        with lost_rank_named(ranks.lost), only_state(start.checkpoint) if start.checkpoint else nullcontext():
            trainer.fit(module, datamodule=datamodule, ckpt_path=start.checkpoint, weights_only=True)
    except (StopRequestedError, SIGTERMException):  # the checkpoint is written, the half-collected step dropped
        # The signal may have reached another rank only; or Lightning, before `install`, which then ends the first step
        # with a SystemExit of code 0.
        stop.requested = True
    return module, stop
