"""The manifest of a folder: checksums by which a file that was altered, cut or lost is named.

    step, row      of the last checkpoint: its step, and the checksum of that step's row in metrics.jsonl
    config_hash    of the run, as run.json has it
    files          name -> size and CRC-32 of config.yaml, of the tables and of the checkpoints

A run writes it with every checkpoint (run_manifest.py), packed cells when they are packed. It is written before the
files that it names get their names, and an entry holds the sum of the file that is replaced as well: a kill may come
between.

All checksums of a run are CRC-32 and made here: a row of metrics, run.json and the manifest itself carry their own
(`sealed`), every other file has its size and sum in the manifest (`sum_of`). Parquet has one a page, of its own format.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

from pydantic import Field, with_config
from typing_extensions import TypedDict  # pydantic's until Python 3.12

from ablations.border import OPEN, Step, checked
from ablations.errors import DamagedError
from ablations.files.atomic import write_text
from ablations.texts import MB, json_tree, opened, read_bytes

MANIFEST = "manifest.json"
MOST_BYTES = 32 * MB
"""Of a manifest; an entry has some 60."""
RESTORE = "restore it, or move the run's folder away"


def sealed(content: Mapping[str, Any]) -> str:
    """JSON whose last key is the checksum of the JSON without it."""
    # CRC-32 and not a digest: it finds accidents, and against a forger a checksum next to the file is no help.
    plain = {key: value for key, value in content.items() if key != "crc32"}
    return json.dumps({**plain, "crc32": _checksum(plain)}, allow_nan=False)


def _checksum(content: Mapping[str, Any]) -> str:
    return f"{crc32(json.dumps(content).encode()):08x}"


def unsealed(content: dict[str, Any]) -> bool:
    """Takes the checksum out of what `sealed` wrote; returns whether there is one and the content agrees with it."""
    return content.pop("crc32", None) == _checksum(content)


def sum_of(content: Path | bytes) -> str:
    """Size and CRC-32 of a file, or of what will be written into one."""
    value = size = 0
    if isinstance(content, bytes):
        value, size = crc32(content), len(content)
    else:
        with opened(content) as stream:
            # In blocks: a checkpoint is larger than memory should hold twice.
            while block := stream.read(1 << 24):
                value, size = crc32(block, value), size + len(block)
    return f"{size}-{value:08x}"


@with_config(OPEN)
class Manifest(TypedDict, total=False):
    """What is in a manifest; of packed cells and base policies, the files only."""

    step: Step
    row: str | None
    config_hash: str | None
    bases: dict[str, Any]
    """Base policies, by their names."""
    files: dict[str, Annotated[str, Field(pattern=r"^\d{1,18}-[0-9a-f]{8}( \d{1,18}-[0-9a-f]{8})?$")]]


NOTHING: Manifest = {"step": 0, "row": None, "config_hash": None, "files": {}}


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None where there is none. Raises DamagedError if it is not as it was written."""
    file = folder / MANIFEST
    try:
        content = read_bytes(file, MOST_BYTES)
    except FileNotFoundError:
        return None
    tree = json_tree(content, file, remedy=f"; {RESTORE}")
    if not isinstance(tree, dict) or not unsealed(tree):
        raise DamagedError(f"{file} is damaged; {RESTORE}")
    return {**NOTHING, **checked(tree, Manifest, file, remedy=f"; {RESTORE}")}


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    write_text(folder / MANIFEST, sealed(content) + "\n")


def difference(file: Path, entry: str, only_size: bool = False) -> str | None:
    """In what a file differs from its entry in a manifest; None: in nothing."""
    if not file.is_file():
        return "is missing"
    # First of all, and alone where contents would take minutes to read at the start.
    if file.stat().st_size not in (int(each.partition("-")[0]) for each in entry.split()):
        return "is cut" if only_size else f"does not match its checksum in {MANIFEST}"
    if only_size:
        return None
    return None if sum_of(file) in entry.split() else f"does not match its checksum in {MANIFEST}"


def check_file(file: Path) -> None:
    """Raises DamagedError if the manifest of the folder that the file is in, or is below, names another content."""
    for folder in list(file.parents)[:3]:
        if manifest := read_manifest(folder):
            entry = manifest["files"].get(file.relative_to(folder).as_posix())
            if entry and (reason := difference(file, entry)):
                raise DamagedError(f"{file} {reason}; {RESTORE}")
            return
