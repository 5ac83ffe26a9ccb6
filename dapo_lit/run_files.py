"""The files of a run folder: how each is written and read, whoever does it.

    config.yaml     the config, resolved            overrides.txt   the command line
    run.json        what the run is and how it is   metrics.jsonl   a row a step; no row is ever rewritten
    manifest.json   checksums (manifest.py)         DONE.json       run.json again, once the run has ended
    heartbeat       the process that trains it      rollouts/, eval/, replay/: tables as Parquet

A run that was killed may leave half a row, and a resumed one goes back to its last checkpoint, so that some rows are
there twice. Reading repairs nothing in silence: what is odd is one of the faults.
"""

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import Field, Strict, with_config
from typing_extensions import TypedDict  # pydantic's until Python 3.12

from dapo_lit.border import (
    LARGEST,
    MOST_STEPS,
    OPEN,
    Day,
    Flag,
    FolderName,
    Moment,
    Seed,
    Step,
    Whole,
    check_size,
    checked,
    json_tree,
)
from dapo_lit.errors import DamagedError
from dapo_lit.files import add_path_to_oserror, replacing, write_text
from dapo_lit.manifest import MANIFEST, RESTORE, check_file, difference, read_manifest, sealed, unsealed

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TABLES = ("rollouts/", "eval/")
RECORD, CONFIG, METRICS, HEARTBEAT, DONE = "run.json", "config.yaml", "metrics.jsonl", "heartbeat", "DONE.json"
CHECKPOINTS, ROLLOUTS, EVALUATIONS, REPLAYS = "checkpoints", "rollouts", "eval", "replay"
"""Folders."""
SILENT_S = 600.0
"""A run that has not written for so long is lost. It beats every half minute; the rest is for slow network disks and
for clocks that differ."""
LONGEST_ROW = 1 << 16
"""Bytes; a row has some six thousand."""
YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, where PyYAML has it, is ten times as fast; a study has one config a run."""


def is_run(folder: Path) -> bool:
    """True if a folder holds a run or what is left of one.

    A config.yaml and a heartbeat are not a run: a process was killed while it opened a new one.
    """
    left = [name for name in (RECORD, METRICS, CONFIG) if (folder / name).exists()]
    left += [file.name for file in (folder / CHECKPOINTS).glob("step_*.ckpt")]
    return bool(left) and not (left == [CONFIG] and (folder / HEARTBEAT).exists())


@with_config(OPEN)
class Origin(TypedDict):
    """The training state that a fork continues."""

    run: str
    step: Step
    state: str | None


@with_config(OPEN)
class Record(TypedDict, total=False):
    """run.json, as far as anything reads it; later versions may record more. Packed cells add the last two."""

    study: str
    arm: FolderName
    seed: Seed
    status: str
    error: str | None
    techniques: dict[str, Flag]
    config_hash: str
    code_hash: str | None
    git_commit: str | None
    base: str
    base_weights: str | None
    base_origin: str | None
    origin: Origin
    inputs: dict[str, str]
    problems: dict[str, Whole]
    prompt_date: Day
    host: str | None
    pid: Whole | None
    started_at: Moment
    resumed_at: list[Moment]
    resumed_with: list[dict[str, Any]]
    versions: dict[str, str | None]
    hardware: dict[str, Any]
    faults: list[str]
    not_finite: list[str]


def checked_record(tree: object, place: object) -> dict[str, Any]:
    """A run's record. Raises DamagedError in one line."""
    return {**checked(tree, Record, place, remedy=f"; {RESTORE}")}


def read_record(run: Path) -> dict[str, Any]:
    """run.json; {} where there is none. Raises DamagedError if it cannot be read, or is that of another run."""
    file = run / RECORD
    if not file.is_file():
        return {}
    record = json_tree(file.read_bytes(), file, remedy=f"; {RESTORE}")
    if isinstance(record, dict) and "crc32" in record and not unsealed(record):
        raise DamagedError(f"{file} does not agree with its checksum; {RESTORE}")
    record = checked_record(record, file)
    known = (read_manifest(run) or {}).get("config_hash")
    # A record that was copied from another run agrees with its own checksum; the manifest knows better.
    if known and record and record.get("config_hash") not in known.split():
        raise DamagedError(f"{file} is the record of another config than {MANIFEST} names; {RESTORE}")
    return record


def write_record(run: Path, record: Mapping[str, Any]) -> None:
    write_text(run / RECORD, json.dumps(json.loads(sealed(record)), indent=2) + "\n")


def read_config(run: Path) -> dict[str, Any]:
    """config.yaml as it was written. Raises DamagedError if there is none, or it is not as it was written."""
    file = run / CONFIG
    check_file(file)
    if not file.is_file():
        raise DamagedError(f"{run}: no {CONFIG}; a run is a folder such as runs/<study>/<arm>/seed_<n>")
    try:
        tree = yaml.load(file.read_text(encoding="utf-8"), Loader=YAML)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # A date that no calendar has is a ValueError.
        raise DamagedError(f"{file} cannot be read ({' '.join(str(error).split())}); {RESTORE}") from None
    if not isinstance(tree, dict):
        raise DamagedError(f"{file} is empty or no config; {RESTORE}")
    check_size(tree, file, remedy=f"; {RESTORE}")
    return tree


def before_step(run: Path, step: int) -> Path:
    """The training state before a recorded step."""
    return run / REPLAYS / f"step_{step:06d}.ckpt"


def kept_states(run: Path) -> list[int]:
    """The steps before which a run kept its training state, ascending."""
    names = (re.fullmatch(r"step_(\d+)\.ckpt", file.name) for file in (run / REPLAYS).glob("step_*"))
    return sorted(int(name[1]) for name in names if name)


def config_text(tree: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(tree, sort_keys=False))


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Raises DamagedError where Parquet cannot be read; a name of a column may be no text."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DamagedError(f"{file} cannot be read ({' '.join(str(error).split())[:200]}); {RESTORE}") from None


def read_arrow(file: Path, columns: Sequence[str] | None = None) -> "pa.Table":
    """A Parquet file, compared with its manifest and its pages with their checksums.

    Raises DamagedError: it cannot be read, or is not as it was written.
    """
    import pyarrow.parquet as pq

    check_file(file)
    with _readable(file):
        return pq.read_table(file, columns=list(columns) if columns else None, page_checksum_verification=True)


def read_table(file: Path, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    table = read_arrow(file, columns)
    with _readable(file):
        return table.to_pandas()


def write_arrow(file: Path, table: "pa.Table", **options: Any) -> None:
    """Replaces a Parquet file; each of its pages has a checksum."""
    import pyarrow.parquet as pq

    with replacing(file) as draft:
        pq.write_table(table, draft, **{"compression": "zstd", "write_page_checksum": True, **options})


def write_table(file: Path, table: "pd.DataFrame") -> None:
    import pyarrow as pa

    write_arrow(file, pa.Table.from_pandas(table, preserve_index=False))


@with_config(OPEN)
class Claim(TypedDict, total=False):
    """The content of `heartbeat`."""

    host: str | None
    pid: Whole | None
    owner: str


def read_claim(run: Path) -> dict[str, Any]:
    """Host, pid and token of the process that trains the run, or trained it last if it was killed; {}: none."""
    file = run / HEARTBEAT
    try:
        return {**checked(json_tree(file.read_bytes(), file), Claim, file)}
    except (FileNotFoundError, NotADirectoryError, DamagedError):
        return {}


def alive(record: Mapping[str, Any], run: Path) -> bool:
    """True if a run with this run.json still writes into its folder; on this host its process must also exist.

    The files' times count, not those in them: a step may take hours, and only the heartbeat is sure to be touched.
    """
    host, pid = record.get("host"), record.get("pid")
    if not host or host == os.uname().nodename:
        if not pid:
            return False
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:  # it exists and belongs to another user
            pass
    written = [file.stat().st_mtime for name in (HEARTBEAT, METRICS, RECORD) if (file := run / name).is_file()]
    # Later than now: a clock was set back.
    return bool(written) and abs(time.time() - max(written)) < SILENT_S


def metrics_line(row: Mapping[str, float | None]) -> str:
    """A row as a line of metrics.jsonl: values that are not finite are null and named in `not_finite`, and the last key
    is the checksum of the line without it."""
    not_finite = [key for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
    # JSON has no NaN; Python's would write one that no other reader takes.
    finite: dict[str, Any] = {**row, **dict.fromkeys(not_finite)}
    if not_finite:
        finite["not_finite"] = not_finite
    return sealed(finite) + "\n"


def append_row(run: Path, row: Mapping[str, float | None]) -> None:
    """Appends a row to metrics.jsonl and forces it to disk. OSError (a full disk) leaves earlier rows untouched."""
    file = run / METRICS
    with add_path_to_oserror(file), file.open("ab") as opened:
        opened.write(metrics_line(row).encode())
        opened.flush()
        # Forced to disk: a row is the only trace of a step that took hours.
        os.fsync(opened.fileno())


def end_torn_row(run: Path) -> None:
    """Ends a last line that a kill cut short, so that the next row starts on a new line."""
    file = run / METRICS
    if file.is_file() and (content := file.read_bytes()) and not content.endswith(b"\n"):
        with add_path_to_oserror(file), file.open("ab") as opened:
            opened.write(b"\n")


@dataclass(frozen=True)
class Metrics:
    """metrics.jsonl as it was read."""

    rows: list[dict[str, Any]]
    """One a step, ascending."""
    faults: tuple[str, ...] = ()
    """A sentence each for torn and damaged lines, rows that a resume replaced, missing steps, values that are NaN or
    infinite."""
    not_finite: frozenset[str] = frozenset()
    """Metrics with a value that is NaN or infinite."""

    @property
    def table(self) -> "pd.DataFrame":
        """A row a step, index `step`."""
        import pandas as pd  # not for what reads the last row only

        if not self.rows:
            return pd.DataFrame(index=pd.Index([], name="step", dtype=int))
        table = pd.DataFrame(self.rows).astype({"step": int}).set_index("step").sort_index()
        # Rows of JSON make a block a column, and pandas warns of columns added to a hundred blocks.
        return table.copy()


def read_metrics(run: Path) -> Metrics:
    """The rows of a run. Raises DamagedError if they end before the row that the manifest names."""
    file, manifest = run / METRICS, read_manifest(run) or {}
    rows: list[dict[str, Any]] = []
    faults: list[str] = [] if file.is_file() else [f"no {METRICS}"]
    checksums: set[str | None] = {None}
    content = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    for number, line in enumerate(content.splitlines(), start=1):
        row = read_row(line)
        if row is None:
            faults.append(f"line {number} is torn (a write was cut off); the row is lost")
            continue
        checksums.add(row["crc32"] if isinstance(row.get("crc32"), str) else None)
        if unsealed(row):
            rows.append(_measured(row, f"{file}, line {number}"))
        else:
            faults.append(f"line {number} does not agree with its checksum (damaged after it was written); left out")
    if manifest.get("row") not in checksums:
        reason = "lacks the row" if file.is_file() else "is missing, and so is the row"
        raise DamagedError(f"{file} {reason} of step {manifest['step']}, which {MANIFEST} names; {RESTORE}")
    rows, dropped = _last_branch(rows)
    if dropped:
        faults.append(f"{_count(dropped, 'row')} left out: a resume went on from a step before")
    not_finite = _take_not_finite(rows)
    faults += [f"{k} is NaN or infinite at {_count(len(at), 'step')}, first {at[0]}" for k, at in not_finite.items()]
    if rows and (gaps := rows[-1]["step"] + 1 - len(rows)):
        faults.append(f"{_count(gaps, 'step')} missing between 0 and {rows[-1]['step']}")
    return Metrics(rows, tuple(faults), frozenset(not_finite))


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


def last_step(run: Path) -> int | None:
    """The step of the last row of metrics.jsonl, whose other rows are not read; None where there is no row yet."""
    try:
        with (run / METRICS).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_ROW))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    return next((row["step"] for line in reversed(lines) if (row := read_row(line))), None)


def read_row(line: str) -> dict[str, Any] | None:
    """A line of metrics.jsonl; None if it is torn."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = row.get("step") if isinstance(row, dict) else None
    return row if type(step) is int and 0 <= step <= MOST_STEPS else None


Row = dict[str, Annotated[float, Strict(), Field(allow_inf_nan=False)] | None]


def _measured(row: dict[str, Any], place: object) -> dict[str, Any]:
    """A whole row, checked: numbers, and nulls for what is not finite. A number beyond a float32's is not, either."""
    named = checked(row.pop("not_finite", []), list[str], f"{place}, not_finite", remedy=f"; {RESTORE}")
    # Counts come back as floats.
    numbers = checked(row, Row, place, remedy=f"; {RESTORE}")
    beyond = [key for key, value in numbers.items() if value is not None and abs(value) > LARGEST]
    counts = {key: value for key, value in row.items() if isinstance(value, int) and abs(value) <= 2**53}
    return {
        **numbers,
        **counts,
        **dict.fromkeys(beyond),
        **({"not_finite": [*named, *beyond]} if named or beyond else {}),
    }


def _last_branch(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The rows that led to the last one, and how many did not: a resumed run continues from a checkpoint before its
    last row, and the rows after that checkpoint describe a policy that no longer exists."""
    kept: list[dict[str, Any]] = []
    dropped = 0
    for row in rows:
        while kept and kept[-1]["step"] >= row["step"]:
            kept.pop()
            dropped += 1
        kept.append(row)
    return kept, dropped


def _take_not_finite(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Takes `not_finite` out of the rows: metric -> its steps."""
    found: dict[str, list[int]] = {}
    for row in rows:
        for key in row.pop("not_finite", ()):
            found.setdefault(key, []).append(row["step"])
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
