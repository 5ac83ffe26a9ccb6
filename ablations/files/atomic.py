"""Files and folders that are either complete or absent, whatever happens while they are written."""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ablations.errors import UserError

DRAFT = ".part"
"""Suffix of what is being written."""


@contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """The path of a draft, which gets the name `final` once the block has written it: of a file in place of an older
    one, of a folder where there is none.

    A kill or a power loss leaves the old content or the new one, never a part of it. An error removes the draft. Two
    processes may not write one file at the same time.
    """
    draft = draft_of(final)
    with add_path_to_oserror(final):
        try:
            yield draft
            put_in_place(draft, final)
        except BaseException:
            remove_any(draft)
            raise


def write_text(file: Path, content: str) -> None:
    """Replaces the content of a file."""
    with replacing(file) as draft:
        draft.write_text(content, encoding="utf-8")


def draft_of(final: Path) -> Path:
    """The path for a draft that will be renamed to `final`; the draft of a killed process is removed.

    The folder must exist: making it would train on into a stub of a run whose folder was moved.
    """
    draft = final.with_name(final.name + DRAFT)
    remove_any(draft)
    return draft


def put_in_place(draft: Path, final: Path) -> None:
    """Forces a draft to disk and gives it its final name."""
    for inner in sorted(draft.rglob("*")) if draft.is_dir() else ():
        force_to_disk(inner)
    force_to_disk(draft)
    draft.replace(final)
    force_to_disk(final.parent)  # the new name


def force_to_disk(path: Path) -> None:
    """Returns when the content of a file, or the list of names in a folder, would survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_any(path: Path) -> None:
    """Removes a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: OSError) -> bool:
    """True if an error says that a disk is full, or the user's part of it; pyarrow's have a text only."""
    return error.errno in FULL or os.strerror(errno.ENOSPC) in str(error)


@contextmanager
def add_path_to_oserror(path: Path) -> Iterator[None]:
    """Adds `path` to an OSError that names no file, as on a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # pyarrow's have a text only
            if str(path) in str(error):
                raise
            raise OSError(f"{path}: {error}") from error
        if error.filename is None:
            error.filename = str(path)
        raise


def make_folder(folder: Path) -> tuple[Path, ...]:
    """Makes a folder of runs and those it is in; returns the ones that were not there, innermost first."""
    made = tuple(place for place in (folder, *folder.parents) if not place.exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"runs_dir: the folder {folder} cannot be made ({error.strerror}); choose another") from None
    return made


def remove_empty(folders: Iterable[Path]) -> None:
    """Removes those of the folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
