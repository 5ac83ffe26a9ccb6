"""Checkpoints on disk: a file under its final name is complete, the last two are kept, a damaged one is skipped.

A checkpoint is a file (one process) or a folder with a file per rank and a list of them (sharded). It is written to a
draft, forced to disk and renamed, so that a kill at any moment leaves the earlier checkpoints intact.
"""

import json
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from dapo_lit.files import DRAFT, draft_of, force_to_disk, naming, put_in_place, settle_replaced
from dapo_lit.ranks import ALONE, Ranks

KEPT = 2
LIST = "files.json"
"""In a sharded checkpoint: name -> [bytes, CRC-32] of every other file; written last."""


def before_step(run: Path, step: int) -> Path:
    """The training state before a recorded step."""
    return run / "replay" / f"step_{step:06d}.ckpt"


def write_checkpoint(final: Path, write: Callable[[Path], None], ranks: Ranks = ALONE, kept: int | None = KEPT) -> None:
    """Lets `write` make a draft file or folder, completes it under the name `final` and removes old checkpoints.

    With several ranks all of them write, and rank 0 renames once they have.

    Args:
        kept: how many checkpoints to keep; None: all.

    Raises:
        OSError: it could not be written; the earlier checkpoints are untouched.
    """
    draft = shared_draft(final, ranks)
    with naming(final):
        write(draft)
    complete_write(draft, final, ranks, kept)


def shared_draft(final: Path, ranks: Ranks) -> Path:
    """The draft that all ranks write into; rank 0 removes that of a killed process first."""
    if ranks.rank == 0:
        draft_of(final)
    ranks.gather(None)
    return final.with_name(final.name + DRAFT)


def complete_write(draft: Path, final: Path, ranks: Ranks, kept: int | None) -> None:
    """After all ranks have written: checksums, fsync, rename, removal of old checkpoints.

    Each rank checks and forces to disk the files that it wrote.
    """
    failure, checksums = None, dict[str, list[int]]()
    try:
        if draft.is_dir():
            own = [file for file in sorted(draft.iterdir()) if ranks.size == 1 or _writer(file) == ranks.rank]
            checksums = {file.name: _checksum(file) for file in own}
            for file in own:
                force_to_disk(file)
    except OSError as error:  # the other ranks must not wait for this one
        failure = f"rank {ranks.rank}: {error}"
    reports = ranks.gather((failure, checksums))
    if failures := [failure for failure, _ in reports if failure]:
        raise OSError(f"{final}: {'; '.join(failures)}")
    if ranks.rank > 0:
        return
    if draft.is_dir():
        everything = {name: checksum for _, part in reports for name, checksum in part.items()}
        (draft / LIST).write_text(json.dumps(everything))
    put_in_place(draft, final)
    for old in complete(final.parent)[:-kept] if kept else ():
        remove(old)


def _writer(file: Path) -> int:
    """The rank that wrote a file of a sharded checkpoint: 3 for `__3_0.distcp`, 0 for names without a rank."""
    rank = file.name.removeprefix("__").partition("_")[0]
    return int(rank) if file.name.startswith("__") and rank.isdecimal() else 0


def complete(folder: Path) -> list[Path]:
    """Complete checkpoints, newest last."""
    return sorted(folder.glob("step_*.ckpt"))


def fault(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be loaded; None if it is intact. Reads all of it."""
    try:
        if checkpoint.is_dir():
            return _folder_fault(checkpoint)
        with zipfile.ZipFile(checkpoint) as archive:  # torch.save writes a zip archive with a checksum per entry
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
    """The newest intact checkpoint in `folder`; damaged newer ones are skipped with a warning.

    A damaged one is renamed to step_000010.ckpt.damaged, so that the run can save that step again.
    """
    settle_replaced(folder)
    for checkpoint in reversed(complete(folder)):
        reason = fault(checkpoint)
        if reason is None:
            return checkpoint
        aside = checkpoint.with_name(checkpoint.name + ".damaged")
        if aside.exists():
            remove(aside)
        checkpoint.rename(aside)
        print(
            f"warning: {checkpoint} is damaged ({reason}); renamed to {aside.name}, trying the checkpoint before it",
            flush=True,
        )
    return None


def _checksum(file: Path) -> list[int]:
    value = size = 0
    with file.open("rb") as opened:
        while block := opened.read(1 << 24):
            value, size = zlib.crc32(block, value), size + len(block)
    return [size, value]


def remove(path: Path) -> None:
    """Removes a checkpoint; a folder is renamed first, so that a kill leaves no half of it under its name."""
    if path.is_dir():
        going = path.with_name(path.name + ".removed")
        path.rename(going)
        shutil.rmtree(going)
    else:
        path.unlink()
