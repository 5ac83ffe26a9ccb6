"""Damage to a file of a run."""

from collections.abc import Callable
from pathlib import Path

from ablations.files.manifest import read_manifest, sum_of, write_manifest

DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "cut in half": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: bytes(len(content)),  # as a power loss leaves it
    "a bit flipped": lambda content: (
        content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 4]) + content[len(content) // 2 + 1 :]
    ),
    "removed": lambda content: None,
}


def resealed(run: Path) -> None:
    """Makes the manifest of a run fit its files, as someone does who alters them on purpose."""
    manifest = read_manifest(run)
    assert manifest is not None
    present = [name for name in manifest["files"] if (run / name).is_file()]
    write_manifest(run, manifest | {"files": {name: sum_of(run / name) for name in present}})


def damage(file: Path, how: str) -> None:
    content = DAMAGES[how](file.read_bytes())
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
