"""The manifest of a run: written with every checkpoint, when the run is opened, and where training starts."""

from collections.abc import Mapping
from pathlib import Path

from ablations.errors import DamagedError
from ablations.files.layout import CONFIG, DONE
from ablations.files.manifest import NOTHING, RESTORE, difference, read_manifest, sum_of, write_manifest
from ablations.files.metrics_file import rows_from_the_end
from ablations.files.record import read_record

STEP_TABLES = ("rollouts/step_*.parquet", "eval/*/step_*.parquet")


def step_of(name: str) -> int:
    """The step that a file is named after.

    >>> step_of("eval/sums/step_000010.parquet")
    10
    """
    return int(name.rpartition("step_")[2].partition(".")[0])


def update_manifest(
    run: Path, step: int | None, sums: Mapping[str, str] | None = None, config_hash: str | None = None
) -> None:
    """Writes the manifest as of a step, with the sums of tables that were written since.

    step: of the checkpoint that is about to get its name, or that training continues from; None: as it was.
    sums: of files that are about to be replaced.
    config_hash: of the run.json that is about to be written.
    """
    before = read_manifest(run) or NOTHING
    known = before["files"]
    # Entries are kept rather than computed again: a table that was altered since must not become the truth.
    files = {name: entry for name, entry in known.items() if _stays(run, name, step)}
    found = [
        file for pattern in STEP_TABLES for file in sorted(run.glob(pattern)) if step and step_of(file.name) <= step
    ]
    found += [file for name in (CONFIG, "overrides.txt") if (file := run / name).is_file()]
    names = [file.relative_to(run).as_posix() for file in found]
    files |= {name: sum_of(run / name) for name in names if name not in files}
    # Both sums until the next manifest: a kill between manifest and rename leaves the old file, which is whole.
    files |= {name: _either(new, known.get(name)) for name, new in (sums or {}).items()}
    config_hash = config_hash or read_record(run).get("config_hash")
    row = {"step": before["step"], "row": before["row"]} if step is None else {"step": step, "row": _row(run, step)}
    write_manifest(
        run,
        {**row, "config_hash": _either(config_hash or "", before["config_hash"]), "files": dict(sorted(files.items()))},
    )


def _stays(run: Path, name: str, step: int | None) -> bool:
    """Not checkpoints that were removed, nor tables of steps that will be computed again."""
    if name.startswith("checkpoints/"):
        return (run / name).exists()
    return step is None or not name.endswith(".parquet") or step_of(name) <= step


def _either(new: str, old: str | None) -> str:
    """An entry that names the old content too, until the next one: a kill may leave that."""
    before = (old or "").partition(" ")[0]
    return new if before in ("", new) else f"{new} {before}"


def _row(run: Path, step: int) -> str | None:
    """The checksum of the last row of a step; None: there is no row yet."""
    # From the end: every checkpoint asks, of a run that may have 100,000 rows.
    return next((row["crc32"] for row in rows_from_the_end(run) if row["step"] == step), None)


def lost_files(run: Path, *below: str) -> list[str]:
    """A sentence for each file below these paths that the manifest names and that was cut or lost since."""
    named = ((read_manifest(run) or {}).get("files") or {}).items()
    found = {name: difference(run / name, entry, only_size=True) for name, entry in named if name.startswith(below)}
    return [f"{name} {reason}" for name, reason in found.items() if reason]


def check_kept(run: Path, *below: str) -> None:
    """Raises DamagedError if a finished run has lost a file below these paths: what is left is not what it recorded.

    While a run trains, its manifest names a checkpoint a moment before it is there.
    """
    if (run / DONE).is_file() and (lost := lost_files(run, *below)):
        raise DamagedError(f"{run}: {lost[0]} since the run ended; {RESTORE}")
