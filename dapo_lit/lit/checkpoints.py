"""When a run saves its state: every few steps, at the end, and on the way out.

Sharded checkpoints are written in the background: training goes on once tensors have been copied to the host's memory.
How one comes to stand complete under its name: runs/checkpoint_files.py.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning import Callback, Trainer

from dapo_lit.config import Config
from dapo_lit.lit.module import DAPOModule
from dapo_lit.lit.strategy import ShardedStrategy
from dapo_lit.ranks import ALONE, Ranks
from dapo_lit.rollout.collect import ExhaustedError
from dapo_lit.rollout.step_collection import LostSampleError, StopRequestedError
from dapo_lit.runs.checkpoint_files import KEPT, before_step, begin, complete_write, write_checkpoint
from dapo_lit.runs.preemption import StopSignal
from dapo_lit.runs.run_folder import RunFolder
from dapo_lit.step.optimizer_steps import NonFiniteError
from dapo_lit.step.rollout_step import RolloutStep

TOGETHER = (StopRequestedError, NonFiniteError, ExhaustedError, LostSampleError)
"""What all ranks raise at the same place."""


class Checkpoints(Callback):
    """Saves the whole training state every `trainer.checkpoint_every` steps, at the end, and on the way out."""

    def __init__(self, config: Config, folder: RunFolder, stop: StopSignal, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.every = config.trainer.checkpoint_every
        self.record = config.replay.record
        self.grace_s = config.trainer.grace_s
        self.folder = folder
        self.stop = stop
        self.in_background = config.trainer.checkpoint_in_background
        self.timeout = timedelta(minutes=config.trainer.timeout_min)
        self.background: BackgroundSave | None = None
        self.trains = False

    def on_train_start(self, trainer: Trainer, module: DAPOModule) -> None:
        self.stop.install(self.grace_s)
        if self.in_background:
            self.background = BackgroundSave(self.ranks, self.timeout)
        self.save_for_replay(trainer, module.counters.step + 1)
        self.trains = True

    def on_train_end(self, trainer: Trainer, module: DAPOModule) -> None:
        self._wait()

    def on_train_batch_end(
        self, trainer: Trainer, module: DAPOModule, outputs: Any, batch: RolloutStep, batch_idx: int
    ) -> None:
        # A signal reaches the ranks one by one. What they found together decides: the flag may change from here on.
        stops = any(self.ranks.gather(self.stop.requested))
        if batch.step % self.every == 0 or trainer.should_stop or stops:
            self.save(trainer, batch.step)
        if not trainer.should_stop:
            self.save_for_replay(trainer, batch.step + 1)
        if stops:
            self.stop.requested = trainer.should_stop = True

    def on_exception(self, trainer: Trainer, module: DAPOModule, exception: BaseException) -> None:
        """A run that stops on its way keeps what it has, where that is the state after a whole step.

        While a step is trained on it is not: some of its updates are made, and it would never be finished.
        """
        if self.ranks.size > 1 and not isinstance(exception, TOGETHER):
            return  # the other ranks are elsewhere; saving needs all of them
        if not self.trains:
            return  # nothing has happened that is not on disk
        step, datamodule = module.counters.step, trainer.datamodule
        is_whole = datamodule.next_step == step + 1
        # The half of a step that could not be sampled again goes into the checkpoint of the step before, be it step 0.
        holds_half = datamodule.collector.interrupted is not None
        if is_whole and (step or holds_half) and not isinstance(exception, OSError):
            self.save(trainer, step, again=holds_half)
        self._wait()
        if not is_whole and self.ranks.rank == 0:
            self._say_what_stays(step + 1)

    def _say_what_stays(self, step: int) -> None:
        checkpoints = self.folder.checkpoints
        onward = f"goes on from {checkpoints[-1].name}" if checkpoints else "begins anew: there is no checkpoint yet"
        print(f"step {step} ended in the middle of its updates; a resumed run {onward}", flush=True)

    def save(self, trainer: Trainer, step: int, again: bool = False) -> None:
        self._wait()  # the last one may be of this step
        final = self.folder.path / "checkpoints" / f"step_{step:06d}.ckpt"
        if again or not self.ranks.first(final.exists):
            self._write(trainer, final, KEPT)

    def save_for_replay(self, trainer: Trainer, step: int) -> None:
        """The state before `step`, if that step is to be recorded: a replay goes on from it as a resumed run would."""
        final = before_step(self.folder.path, step)
        if step in self.record and not self.ranks.first(final.exists):
            final.parent.mkdir(exist_ok=True)
            self._write(trainer, final, kept=None)

    def _write(self, trainer: Trainer, final: Path, kept: int | None) -> None:
        strategy = trainer.strategy

        def write(beside: Path) -> None:
            trainer.save_checkpoint(beside, weights_only=False)

        if self.background is None:
            write_checkpoint(final, write, self.ranks, kept)
            return
        assert isinstance(strategy, ShardedStrategy)
        strategy.saving_group = self.background.ranks.group

        def begin_to_write(beside: Path) -> "Future[Any]":
            write(beside)
            assert strategy.written is not None
            return strategy.written

        self.background.start(final, begin_to_write, kept)

    def _wait(self) -> None:
        if self.background is not None:
            self.background.wait()


class BackgroundSave:
    """One checkpoint at a time, written by a thread on every rank while training goes on."""

    def __init__(self, ranks: Ranks, timeout: timedelta) -> None:
        # A group of its own: its collectives run beside those of training, in no fixed order.
        self.ranks = Ranks(ranks.rank, ranks.size, dist.new_group(backend="gloo", timeout=timeout))
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._under_way: Future[None] | None = None

    def start(self, final: Path, begin_to_write: Callable[[Path], "Future[Any]"], kept: int | None = KEPT) -> None:
        """Waits for the one before, and returns when `begin_to_write` has copied what it will write."""
        self.wait()
        beside = begin(final, self.ranks)
        written = begin_to_write(beside)

        def complete_it() -> None:
            written.result()
            complete_write(beside, final, self.ranks, kept)

        self._under_way = self._thread.submit(complete_it)

    def wait(self) -> None:
        """Until the one under way stands under its final name. Raises what went wrong, as write_checkpoint does."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()
