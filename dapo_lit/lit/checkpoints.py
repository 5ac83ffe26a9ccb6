"""Checkpoints on disk: what stands under its final name is complete, the last two are kept, a damaged one is told.

A checkpoint is a file (one process) or a folder with a file a rank and a list of them (sharded). It is written beside
its final name, forced to disk and renamed; a kill at any moment leaves the earlier ones as they were.
"""

import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
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

    def on_train_start(self, trainer: Trainer, module: DAPOModule) -> None:
        self.stop.install(self.grace_s)
        self.save_for_replay(trainer, module.counters.step + 1)

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
        step = module.counters.step
        if step and module.policy is not None and not isinstance(exception, OSError):
            collector = trainer.datamodule.collector
            # The half of a step that could not be sampled again goes into the checkpoint of the step before.
            self.save(trainer, step, again=collector is not None and collector.interrupted is not None)

    def save(self, trainer: Trainer, step: int, again: bool = False) -> None:
        final = self.folder.path / "checkpoints" / f"step_{step:06d}.ckpt"
        if again and self.ranks.first(final.exists):
            self.ranks.first(lambda: _remove(final))
        if not self.ranks.first(final.exists):
            write_checkpoint(final, lambda path: trainer.save_checkpoint(path, weights_only=False), self.ranks)

    def save_for_replay(self, trainer: Trainer, step: int) -> None:
        """The state before `step`, if that step is to be recorded: a replay goes on from it as a resumed run would."""
        final = before_step(self.folder.path, step)
        if step in self.record and not self.ranks.first(final.exists):
            final.parent.mkdir(exist_ok=True)
            write_checkpoint(
                final, lambda path: trainer.save_checkpoint(path, weights_only=False), self.ranks, kept=None
            )


def before_step(run: Path, step: int) -> Path:
    """The training state before a recorded step."""
    return run / "replay" / f"step_{step:06d}.ckpt"


def write_checkpoint(final: Path, write: Callable[[Path], None], ranks: Ranks = ALONE, kept: int | None = KEPT) -> None:
    """Has `write` make a file or a folder beside `final`, forces it to disk, renames it, removes all but the last ones.

    With several ranks all of them write, and rank 0 does the rest once they have.

    Args:
        kept: how many stay; None: all.

    Raises:
        OSError: it could not be written; the earlier checkpoints are untouched.
    """
    beside = final.with_suffix(".part")
    if ranks.rank == 0 and beside.is_dir():  # of a process that was killed while it wrote
        shutil.rmtree(beside)
    ranks.gather(None)
    write(beside)
    ranks.gather(None)
    if ranks.rank > 0:
        return
    if beside.is_dir():
        (beside / LIST).write_text(json.dumps(_contents(beside)))
        for file in beside.iterdir():
            _force_to_disk(file)
    _force_to_disk(beside)
    beside.replace(final)
    _force_to_disk(final.parent)  # the new name itself
    for old in complete(final.parent)[:-kept] if kept else ():
        _remove(old)


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
    """The policy's state dict from a checkpoint of one process or of several, whole and on the CPU."""
    if checkpoint.is_dir():
        found: dict[str, Any] = {}
        reader, planner = FileSystemReader(checkpoint), _EmptyStateDictLoadPlanner(keys={"state_dict"})
        _load_state_dict(found, storage_reader=reader, planner=planner, no_dist=True)
    else:  # the run's own file: it holds optimizer state and counters, which weights_only refuses
        found = torch.load(checkpoint, map_location="cpu", weights_only=False, mmap=True)
    prefix = "policy."
    return {name.removeprefix(prefix): t for name, t in found["state_dict"].items() if name.startswith(prefix)}


def _contents(folder: Path) -> dict[str, list[int]]:
    return {file.name: _checksum(file) for file in sorted(folder.iterdir()) if file.name != LIST}


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
