"""metrics.jsonl: a row a step, each with its checksum; no row is ever rewritten.

A run that was killed may leave half a row, and a resumed one goes back to its last checkpoint, so that some rows are
there twice. Reading repairs nothing in silence: what is odd is one of the faults.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, Strict

from ablations.border import LARGEST, MOST_STEPS, checked
from ablations.errors import DamagedError
from ablations.files.atomic import add_path_to_oserror
from ablations.files.layout import METRICS
from ablations.files.manifest import MANIFEST, RESTORE, read_manifest, sealed, unsealed
from ablations.texts import json_tree, opened

if TYPE_CHECKING:
    import pandas as pd

LONGEST_ROW = 1 << 16
"""Bytes; a row has some six thousand."""
MOST_ROWS = 1_000_000
MOST_FAULTS = 1000
"""Damaged rows; a file with more is none of a run's."""


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
    with add_path_to_oserror(file), file.open("ab") as stream:
        stream.write(metrics_line(row).encode())
        stream.flush()
        # Forced to disk: a row is the only trace of a step that took hours.
        os.fsync(stream.fileno())


def end_torn_row(run: Path) -> None:
    """Ends a last line that a kill cut short, so that the next row starts on a new line."""
    file = run / METRICS
    if not file.is_file():
        return
    with opened(file) as stream:
        stream.seek(-min(1, stream.seek(0, os.SEEK_END)), os.SEEK_END)
        is_torn = stream.read() not in (b"", b"\n")
    if is_torn:
        with add_path_to_oserror(file), file.open("ab") as stream:
            stream.write(b"\n")


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
    for number, line in enumerate(metrics_lines(file), start=1):
        if len(faults) > MOST_FAULTS or number > MOST_ROWS:
            most = f"{MOST_FAULTS:,} damaged rows" if len(faults) > MOST_FAULTS else f"{MOST_ROWS:,} rows"
            raise DamagedError(f"{file} has more than {most}; {RESTORE}")
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


def metrics_lines(file: Path) -> Iterator[str]:
    """The lines of metrics.jsonl, each no longer than LONGEST_ROW; none where there is no file."""
    if file.is_file():
        with opened(file) as stream:
            while line := stream.readline(LONGEST_ROW):
                yield line.decode("utf-8", "replace")


def last_step(run: Path) -> int | None:
    """The step of the last row of metrics.jsonl, whose other rows are not read; None where there is no row yet."""
    return next((row["step"] for row in rows_from_the_end(run)), None)


def rows_from_the_end(run: Path) -> Iterator[dict[str, Any]]:
    """The rows of metrics.jsonl from the last to the first, read as far as they are asked for; torn ones are left out,
    and nothing is checked."""
    try:
        with opened(run / METRICS) as file:
            end, rest = file.seek(0, os.SEEK_END), b""
            while end > 0 and len(rest) < LONGEST_ROW:
                start = max(0, end - LONGEST_ROW)
                file.seek(start)
                lines = (file.read(end - start) + rest).split(b"\n")
                # The first line of a block starts in the one before.
                rest, end = lines[0], start
                for line in reversed(lines[1:] if start else lines):
                    if row := read_row(line.decode(errors="replace")):
                        yield row
    except (OSError, DamagedError):
        return


def read_row(line: str) -> dict[str, Any] | None:
    """A line of metrics.jsonl; None if it is torn."""
    try:
        row = json_tree(line, METRICS)
    except DamagedError:
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
