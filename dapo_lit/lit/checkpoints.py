"""Saves a run's state every few steps, at the end, and when it is stopped.

runs/checkpoint_files.py makes sure that a checkpoint under its final name is complete.
"""

from pathlib import Path
from typing import Any

from lightning import Callback, Trainer

from dapo_lit.config import Config
from dapo_lit.errors import HeldError
from dapo_lit.files import remove_empty
from dapo_lit.lit.module import DAPOModule
from dapo_lit.ranks import ALONE, Ranks
from dapo_lit.rollout.collect import ExhaustedError
from dapo_lit.rollout.step_collection import LostSampleError, StopRequestedError
from dapo_lit.runs.checkpoint_files import KEPT, before_step, remove, write_checkpoint
from dapo_lit.runs.preemption import StopSignal
from dapo_lit.runs.rollout_table import keeps_rollouts, rollouts_file
from dapo_lit.runs.run_folder import RunFolder
from dapo_lit.step.batch import RolloutStep
from dapo_lit.step.optimizer import NonFiniteError

TOGETHER = (StopRequestedError, NonFiniteError, ExhaustedError, LostSampleError)
"""Exceptions that all ranks raise at the same point, so that they can save together."""


class Checkpoints(Callback):
    """Saves the whole training state every `trainer.checkpoint_every` steps, at the end, and on an exception."""

    def __init__(self, config: Config, folder: RunFolder, stop: StopSignal, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.config = config
        self.every = config.trainer.checkpoint_every
        self.record = config.replay.record
        self.folder = folder
        self.stop = stop
        self.trains = False

    def on_train_start(self, trainer: Trainer, module: DAPOModule) -> None:
        self.save_for_replay(trainer, module.counters.step + 1)
        self.trains = True

    def on_train_batch_end(
        self, trainer: Trainer, module: DAPOModule, outputs: Any, batch: RolloutStep, batch_idx: int
    ) -> None:
        # A signal reaches the ranks at different times, and the flag may still change: the gathered value decides.
        stops = any(self.ranks.gather(self.stop.requested))
        ends = trainer.should_stop and self.config.fork is None  # nobody continues a fork of a few steps
        if batch.step % self.every == 0 or ends or stops:
            self.save(trainer, batch.step)
        if not trainer.should_stop:
            self.save_for_replay(trainer, batch.step + 1)
        if stops:
            self.stop.requested = trainer.should_stop = True

    def on_exception(self, trainer: Trainer, module: DAPOModule, exception: BaseException) -> None:
        """Saves the state after the last whole step, where the state is that.

        During a step's updates it is not: some are made, and a resumed run would never make the others. Nor is it
        before the step's rollouts are written, which no checkpoint holds.
        """
        if self.ranks.size > 1 and not isinstance(exception, TOGETHER):
            return  # saving needs all ranks, and the others are somewhere else
        if not self.trains:
            return  # everything is on disk already
        step, datamodule = module.counters.step, trainer.datamodule
        has_rollouts = self.ranks.rank == 0 and step > 0 and keeps_rollouts(self.config, step)
        is_whole = datamodule.next_step == step + 1
        is_whole &= not has_rollouts or rollouts_file(self.folder.path, step).is_file()
        if is_whole and step and not isinstance(exception, (OSError, HeldError)):
            self.save(trainer, step)
        if not is_whole and self.ranks.rank == 0 and not isinstance(exception, KeyboardInterrupt):  # train.py says so
            kept = self.folder.checkpoints
            after = f"continues from {kept[-1].name}" if kept else "starts anew: there is no checkpoint yet"
            print(f"step {datamodule.next_step - 1} ended before it was complete; a resumed run {after}", flush=True)

    def save(self, trainer: Trainer, step: int) -> None:
        final = self.folder.path / "checkpoints" / f"step_{step:06d}.ckpt"
        if not self.ranks.first(final.exists):
            self._write(trainer, final, KEPT)

    def save_for_replay(self, trainer: Trainer, step: int) -> None:
        """Saves the state before `step` if that step is to be recorded; a replay continues from it."""
        final = before_step(self.folder.path, step)
        if step in self.record and not self.ranks.first(final.exists):
            final.parent.mkdir(exist_ok=True)
            self._write(trainer, final, kept=None)

    def _write(self, trainer: Trainer, final: Path, kept: int | None) -> None:
        if self.ranks.rank == 0:
            self.folder.check_owner()

        def write(draft: Path) -> None:
            trainer.save_checkpoint(draft, weights_only=False)
            if self.ranks.size > 1:
                return
            try:
                self.folder.check_owner()
            except HeldError:  # Lightning makes a folder that was moved away anew
                remove(draft)
                remove_empty((draft.parent, self.folder.path))
                raise

        write_checkpoint(final, write, self.ranks, kept)
