"""Folders that are made before it is known whether anything will be written into them."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def make_folder(folder: Path) -> tuple[Path, ...]:
    """Makes a folder and those it is in; returns the ones that were not there, innermost first."""
    made = tuple(place for place in (folder, *folder.parents) if not place.exists())
    folder.mkdir(parents=True, exist_ok=True)
    return made


def remove_empty(folders: Iterable[Path]) -> None:
    """Removes those of the folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
