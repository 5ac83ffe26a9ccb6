"""Checkpoints as files: what stands under its final name is complete, the last two are kept, a damaged one is told.

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

from dapo_lit.ranks import ALONE, Ranks

KEPT = 2
REPLACED = ".replaced"
"""Behind the name of a folder that a newer one of the same step is about to replace."""
LIST = "files.json"
"""In a sharded checkpoint: name -> [bytes, CRC-32] of every other file; written last."""


def before_step(run: Path, step: int) -> Path:
    """The training state before a recorded step."""
    return run / "replay" / f"step_{step:06d}.ckpt"


def write_checkpoint(final: Path, write: Callable[[Path], None], ranks: Ranks = ALONE, kept: int | None = KEPT) -> None:
    """Has `write` make a file or a folder beside `final`, forces it to disk, renames it, removes all but the last ones.

    An older `final` stays until then. With several ranks all of them write, and rank 0 renames once they have.

    Args:
        kept: how many stay; None: all.

    Raises:
        OSError: it could not be written; the earlier checkpoints are untouched.
    """
    beside = begin(final, ranks)
    write(beside)
    complete_write(beside, final, ranks, kept)


def begin(final: Path, ranks: Ranks) -> Path:
    """Where to write what will be called `final`; nothing is there."""
    beside = final.with_suffix(".part")
    if ranks.rank == 0 and beside.is_dir():  # of a process that was killed while it wrote
        shutil.rmtree(beside)
    ranks.gather(None)
    return beside


def complete_write(beside: Path, final: Path, ranks: Ranks, kept: int | None) -> None:
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
    _take_name(beside, final)
    _force_to_disk(final.parent)  # the new name itself
    for old in complete(final.parent)[:-kept] if kept else ():
        remove(old)


def _take_name(beside: Path, final: Path) -> None:
    """A file takes the place of an older one at once; an older folder must have another name before."""
    if not final.is_dir():
        beside.replace(final)
        return
    aside = final.with_name(final.name + REPLACED)
    final.rename(aside)
    beside.replace(final)
    shutil.rmtree(aside)


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
    _settle_replaced(folder)
    for checkpoint in reversed(complete(folder)):
        reason = fault(checkpoint)
        if reason is None:
            return checkpoint
        aside = checkpoint.with_name(checkpoint.name + ".damaged")
        if aside.exists():
            remove(aside)
        checkpoint.rename(aside)
        print(f"{checkpoint} is damaged ({reason}); it is now {aside.name}, and an earlier one is taken", flush=True)
    return None


def _settle_replaced(folder: Path) -> None:
    """After a kill between the two renames of a replacement the older folder gets its name back."""
    for aside in folder.glob(f"step_*.ckpt{REPLACED}"):
        final = aside.with_name(aside.name.removesuffix(REPLACED))
        if final.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(final)


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


def remove(path: Path) -> None:
    """A folder is renamed first: a kill in between must not leave half of it under a checkpoint's name."""
    if path.is_dir():
        going = path.with_name(path.name + ".removed")
        path.rename(going)
        shutil.rmtree(going)
    else:
        path.unlink()
