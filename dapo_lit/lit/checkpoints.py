"""Checkpoints on disk: what stands under its final name is complete, the last two are kept, a damaged one is told.

A checkpoint is a file (one process) or a folder with a file a rank and a list of them (sharded). It is written beside
its final name, forced to disk and renamed; a kill at any moment leaves the earlier ones as they were. Sharded ones are
written in the background: training goes on once tensors have been copied to the host's memory.
"""

import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning import Callback, Trainer
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from dapo_lit.config import Config
from dapo_lit.lit.datamodule import RolloutStep
from dapo_lit.lit.gradient_steps import NonFiniteError
from dapo_lit.lit.module import DAPOModule
from dapo_lit.lit.preemption import StopSignal
from dapo_lit.lit.run_folder import RunFolder
from dapo_lit.lit.strategy import METADATA, ShardedStrategy
from dapo_lit.rollout.collect import ExhaustedError
from dapo_lit.rollout.flight import StopRequestedError
from dapo_lit.rollout.ranks import ALONE, Ranks

KEPT = 2
TOGETHER = (StopRequestedError, NonFiniteError, ExhaustedError)
"""What all ranks raise at the same place."""
LIST = "files.json"
"""In a sharded checkpoint: name -> [bytes, CRC-32] of every other file; written last."""


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

    def on_train_start(self, trainer: Trainer, module: DAPOModule) -> None:
        self.stop.install(self.grace_s)
        if self.in_background:
            self.background = BackgroundSave(self.ranks, self.timeout)
        self.save_for_replay(trainer, module.counters.step + 1)

    def on_train_end(self, trainer: Trainer, module: DAPOModule) -> None:
        self._wait()

    def on_train_batch_end(
        self, trainer: Trainer, module: DAPOModule, outputs: Any, batch: RolloutStep, batch_idx: int
    ) -> None:
        self.stop.requested = any(self.ranks.gather(self.stop.requested))  # a signal reaches the ranks one by one
        if batch.step % self.every == 0 or trainer.should_stop or self.stop.requested:
            self.save(trainer, batch.step)
        if not trainer.should_stop:
            self.save_for_replay(trainer, batch.step + 1)
        if self.stop.requested:
            trainer.should_stop = True

    def on_exception(self, trainer: Trainer, module: DAPOModule, exception: BaseException) -> None:
        """A run that stops on its way keeps what it has: state and counters are those after the last whole step."""
        if self.ranks.size > 1 and not isinstance(exception, TOGETHER):
            return  # the other ranks are elsewhere; saving needs all of them
        step, collector = module.counters.step, trainer.datamodule.collector
        # The half of a step that could not be sampled again goes into the checkpoint of the step before, be it step 0.
        holds_half = collector is not None and collector.interrupted is not None
        if (step or holds_half) and module.policy is not None and not isinstance(exception, OSError):
            self.save(trainer, step, again=holds_half)
        self._wait()

    def save(self, trainer: Trainer, step: int, again: bool = False) -> None:
        self._wait()  # the last one may be of this step
        final = self.folder.path / "checkpoints" / f"step_{step:06d}.ckpt"
        if again and self.ranks.first(final.exists):
            self.ranks.first(lambda: _remove(final))
        if not self.ranks.first(final.exists):
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
        beside = _begin(final, self.ranks)
        written = begin_to_write(beside)

        def complete_it() -> None:
            written.result()
            _finish(beside, final, self.ranks, kept)

        self._under_way = self._thread.submit(complete_it)

    def wait(self) -> None:
        """Until the one under way stands under its final name. Raises what went wrong, as write_checkpoint does."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()


def before_step(run: Path, step: int) -> Path:
    """The training state before a recorded step."""
    return run / "replay" / f"step_{step:06d}.ckpt"


def write_checkpoint(final: Path, write: Callable[[Path], None], ranks: Ranks = ALONE, kept: int | None = KEPT) -> None:
    """Has `write` make a file or a folder beside `final`, forces it to disk, renames it, removes all but the last ones.

    With several ranks all of them write, and rank 0 renames once they have.

    Args:
        kept: how many stay; None: all.

    Raises:
        OSError: it could not be written; the earlier checkpoints are untouched.
    """
    beside = _begin(final, ranks)
    write(beside)
    _finish(beside, final, ranks, kept)


def _begin(final: Path, ranks: Ranks) -> Path:
    """Where to write what will be called `final`; nothing is there."""
    beside = final.with_suffix(".part")
    if ranks.rank == 0 and beside.is_dir():  # of a process that was killed while it wrote
        shutil.rmtree(beside)
    ranks.gather(None)
    return beside


def _finish(beside: Path, final: Path, ranks: Ranks, kept: int | None) -> None:
    """Once every rank has written: list, disk, name. Each rank reads and forces to disk what it wrote."""
    failed, contents = None, dict[str, list[int]]()
    try:
        if beside.is_dir():
            own = [file for file in beside.iterdir() if ranks.size == 1 or _writer(file) == ranks.rank]
            contents = {file.name: _checksum(file) for file in sorted(own)}
            for file in own:
                _force_to_disk(file)
    except OSError as error:  # the others must not wait for this rank
        failed = f"rank {ranks.rank}: {error}"
    told = ranks.gather((failed, contents))
    if failures := [failed for failed, _ in told if failed]:
        raise OSError(f"{final}: {'; '.join(failures)}")
    if ranks.rank > 0:
        return
    if beside.is_dir():
        everything = {name: checksum for _, part in told for name, checksum in part.items()}
        (beside / LIST).write_text(json.dumps(everything))
        _force_to_disk(beside / LIST)
    _force_to_disk(beside)
    beside.replace(final)
    _force_to_disk(final.parent)  # the new name itself
    for old in complete(final.parent)[:-kept] if kept else ():
        _remove(old)


def _writer(file: Path) -> int:
    """The rank that wrote a file of a sharded checkpoint: `__3_0.distcp` is of rank 3, what names none of rank 0."""
    rank = file.name.removeprefix("__").partition("_")[0]
    return int(rank) if file.name.startswith("__") and rank.isdecimal() else 0


def complete(folder: Path) -> list[Path]:
    """Checkpoints under their final names, newest last."""
    return sorted(folder.glob("step_*.ckpt"))


def fault(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be loaded; None if it is whole. Reads all of it."""
    try:
        if checkpoint.is_dir():
            return _folder_fault(checkpoint)
        with zipfile.ZipFile(checkpoint) as archive:  # torch.save writes a zip archive with a checksum an entry
            bad = archive.testzip()
        return None if bad is None else f"{bad} does not match its checksum"
    except (OSError, zipfile.BadZipFile, ValueError, EOFError) as error:
        return f"{type(error).__name__}: {error}"


def _folder_fault(checkpoint: Path) -> str | None:
    if not (checkpoint / LIST).is_file():
        return f"{LIST} is missing"
    for name, expected in json.loads((checkpoint / LIST).read_text()).items():
        if not (checkpoint / name).is_file():
            return f"{name} is missing"
        if _checksum(checkpoint / name) != expected:
            return f"{name} does not match its checksum"
    return None


def newest_good(folder: Path) -> Path | None:
    """The newest checkpoint in `folder` that is whole; newer ones that are not are set aside and told.

    A damaged one is renamed to step_000010.ckpt.damaged: the run will come by that step again and save it anew.
    """
    for checkpoint in reversed(complete(folder)):
        reason = fault(checkpoint)
        if reason is None:
            return checkpoint
        aside = checkpoint.with_name(checkpoint.name + ".damaged")
        if aside.exists():
            _remove(aside)
        checkpoint.rename(aside)
        print(f"{checkpoint} is damaged ({reason}); it is now {aside.name}, and an earlier one is taken", flush=True)
    return None


def policy_weights(checkpoint: Path) -> dict[str, Tensor]:
    """The policy's state dict from a checkpoint of one process or of several, whole and on the CPU.

    Of a policy with adapters these alone: their base is not in a checkpoint.
    """
    if checkpoint.is_dir():
        found: dict[str, Any] = {}
        reader, planner = FileSystemReader(checkpoint), _EmptyStateDictLoadPlanner(keys={"state_dict"})
        _load_state_dict(found, storage_reader=reader, planner=planner, no_dist=True)
    else:  # the run's own file: it holds optimizer state and counters, which weights_only refuses
        found = torch.load(checkpoint, map_location="cpu", weights_only=False, mmap=True)
    prefix = "policy."  # PPO's has a critic too
    return {name.removeprefix(prefix): t for name, t in found["state_dict"].items() if name.startswith(prefix)}


def base_fingerprint(checkpoint: Path) -> int | None:
    """Of the weights that a checkpoint's adapters stand beside; None: it has none."""
    file = checkpoint / METADATA if checkpoint.is_dir() else checkpoint
    found: int | None = torch.load(file, map_location="cpu", weights_only=False, mmap=True)["dapo_lit"].get(
        "base_fingerprint"
    )
    return found


def _checksum(file: Path) -> list[int]:
    value = size = 0
    with file.open("rb") as opened:
        while block := opened.read(1 << 24):
            value, size = zlib.crc32(block, value), size + len(block)
    return [size, value]


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """A folder is renamed first: a kill in between must not leave half of it under a checkpoint's name."""
    if path.is_dir():
        going = path.with_name(path.name + ".removed")
        path.rename(going)
        shutil.rmtree(going)
    else:
        path.unlink()
