"""Checkpoints on disk: a file under its final name is complete, the last two are kept, a damaged one is skipped.

A checkpoint is a file (one process) or a folder with a file per rank (sharded). It is written to a draft, forced to
disk, named in the run's manifest and renamed, so that a kill at any moment leaves the earlier checkpoints intact.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ablations.errors import DamagedError
from ablations.files.atomic import DRAFT, add_path_to_oserror, draft_of, force_to_disk, put_in_place, remove_any
from ablations.files.layout import CHECKPOINTS, REPLAYS
from ablations.files.manifest import MANIFEST, difference, read_manifest, sum_of
from ablations.files.run_manifest import step_of, update_manifest
from dapo_lit.log import log
from dapo_lit.ranks import SINGLE_PROCESS, Ranks
from dapo_lit.runs.checkpoint_weights import METADATA
from dapo_lit.runs.safe_loading import STATE_MAY, load_file

KEPT = 2
REMOVED = ".removed"
"""Suffix of a checkpoint that is being removed."""


def write_checkpoint(
    final: Path, write: Callable[[Path], None], ranks: Ranks = SINGLE_PROCESS, kept: int | None = KEPT
) -> None:
    """Lets `write` make a draft file or folder, completes it under the name `final` and removes old checkpoints.

    With several ranks all of them write, and rank 0 renames once they have. `kept`: how many checkpoints to keep; None:
    all. Raises OSError if it could not be written; the earlier checkpoints are untouched, and no draft is left.
    """
    draft = final.with_name(final.name + DRAFT)
    if ranks.rank == 0:
        draft_of(final)  # removes that of a killed process
    ranks.gather(None)
    with without_draft(draft, ranks):
        with add_path_to_oserror(final):
            write(draft)
        _complete(draft, final, ranks, kept)


@contextmanager
def without_draft(draft: Path, ranks: Ranks) -> Iterator[None]:
    """Removes what a failed write has left: on a full disk it would keep the disk full, and run.json could not be
    written either."""
    try:
        yield
    except BaseException:
        if ranks.rank == 0:
            remove_any(draft)
        raise


def _complete(draft: Path, final: Path, ranks: Ranks, kept: int | None) -> None:
    """After all ranks have written: checksums, fsync, rename, removal of old checkpoints.

    Each rank checks and forces to disk the files that it wrote.
    """
    failure, sums = None, dict[str, str]()
    name = f"{final.parent.name}/{final.name}"
    try:
        for file in sorted(draft.iterdir()) if draft.is_dir() else [draft]:
            if ranks.size == 1 or _writer(file) == ranks.rank:
                sums[f"{name}/{file.name}" if draft.is_dir() else name] = sum_of(file)
                force_to_disk(file)
                # Under its final name it would be taken for one that a run can continue from.
                if file == draft or file.name == METADATA:
                    load_file(file)
    except OSError as error:  # the other ranks must not wait for this one
        failure = f"rank {ranks.rank}: {error}"
    except DamagedError as error:
        failure = f"{str(error).partition(', which')[0]}; {STATE_MAY}"
    reports = ranks.gather((failure, sums))
    if failures := [failure for failure, _ in reports if failure]:
        raise OSError(f"{final}: {'; '.join(failures)}")
    if ranks.rank > 0:
        return
    # A state for a replay is kept for ever, and no run continues from it.
    everything = {file: found for _, part in reports for file, found in part.items()}
    update_manifest(final.parent.parent, step_of(final.name) if kept else None, everything)
    put_in_place(draft, final)
    for old in complete(final.parent)[:-kept] if kept else ():
        remove(old)
    # What a killed process left of other steps, as large as a checkpoint each.
    for leftover in [*final.parent.glob(f"step_*{DRAFT}"), *final.parent.glob(f"step_*{REMOVED}")]:
        remove_any(leftover)


def _writer(file: Path) -> int:
    """The rank that wrote a file of a sharded checkpoint: 3 for `__3_0.distcp`, 0 for names without a rank."""
    rank = file.name.removeprefix("__").partition("_")[0]
    return int(rank) if file.name.startswith("__") and rank.isdecimal() else 0


def complete(folder: Path) -> list[Path]:
    """Complete checkpoints, newest last."""
    return sorted(folder.glob("step_*.ckpt"))


def damage_reason(checkpoint: Path, ranks: Ranks = SINGLE_PROCESS) -> str | None:
    """Why a checkpoint cannot be loaded; None if it is as the run's manifest has it. Reads all of it.

    Of several ranks each reads the files that a rank of its number wrote; all get one verdict, or raise one OSError.
    Without a manifest (an older version wrote the run) there is nothing to compare it with, nor for a file that a
    callback of the user's wrote next to the run's own.
    """
    run = checkpoint.parent.parent
    manifest = read_manifest(run)
    if manifest is None:
        return None
    name = f"{checkpoint.parent.name}/{checkpoint.name}"
    files = {file: entry for file, entry in manifest["files"].items() if file == name or file.startswith(f"{name}/")}
    own = [file for file in files if _writer(run / file) % ranks.size == ranks.rank]
    found: str | OSError | None
    try:
        found = next((f"{file} {reason}" for file in own if (reason := difference(run / file, files[file]))), None)
    except OSError as error:  # the other ranks must not wait for this one
        found = error
    found = next((each for each in ranks.gather(found) if each is not None), None)
    if isinstance(found, OSError):
        raise found
    if not files and checkpoint.parent.name not in (CHECKPOINTS, REPLAYS):
        log.info(f"{checkpoint}: {MANIFEST} does not name it, so it is read without a checksum")
        return None
    return found if files else f"{MANIFEST} does not name it"


def newest_good(folder: Path, ranks: Ranks = SINGLE_PROCESS) -> Path | None:
    """The newest intact checkpoint in `folder`; damaged newer ones are skipped with a warning.

    A damaged one is renamed to step_000010.ckpt.damaged, so that the run can save that step again.
    """
    for checkpoint in reversed(complete(folder)):
        # The others check their files: RunStart.received.
        ranks.first(checkpoint.absolute)
        reason = damage_reason(checkpoint, ranks)
        if reason is None:
            return checkpoint
        aside = checkpoint.with_name(checkpoint.name + ".damaged")
        if aside.exists():
            remove(aside)
        checkpoint.rename(aside)
        log.warning(f"{checkpoint} is damaged ({reason}); renamed to {aside.name}, trying the checkpoint before it")
    return None


def remove(path: Path) -> None:
    """Removes a checkpoint; a folder is renamed first, so that a kill leaves no half of it under its name."""
    if path.is_dir():
        going = path.with_name(path.name + REMOVED)
        path.rename(going)
        shutil.rmtree(going)
    else:
        path.unlink()
