"""Reads metrics.jsonl, which is append-only: a resumed run goes back some steps, a kill may leave half a line."""

import json
import math
from pathlib import Path
from typing import Any
from zlib import crc32

import pandas as pd

NOT_FINITE = "is NaN or infinite"
"""Follows a metric's name in the fault that reports it."""
DAMAGED = "does not agree with its checksum (damaged after it was written); it is left out"
"""Follows a line's number in the fault that reports it."""


def read_metrics(folder: Path) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The rows of a run by step, and what is odd about them.

    Returns:
        A frame with index `step` (sorted, unique); and a sentence each for torn and damaged lines, rows that a resume
        replaced, steps missing between the first and the last, and values that are NaN or infinite.
    """
    packed = folder / "metrics.parquet"
    if packed.is_file():
        return _indexed(pd.read_parquet(packed)), ()
    file = folder / "metrics.jsonl"
    if not file.is_file():
        return _indexed(pd.DataFrame()), ("no metrics.jsonl",)
    rows, faults = _parse(file)
    rows, dropped = _last_branch(rows)
    if dropped:
        faults.append(f"{_count(dropped, 'row')} left out: a resume went on from a step before")
    faults += _not_finite(rows)
    table = _indexed(pd.DataFrame(rows))
    steps = table.index[table.index > 0]
    gaps = int(steps.max() - steps.min() + 1 - len(steps)) if len(steps) else 0
    if gaps:
        faults.append(f"{_count(gaps, 'step')} missing between {steps.min()} and {steps.max()}")
    return table, tuple(faults)


def _parse(file: Path) -> tuple[list[dict[str, Any]], list[str]]:
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        row, start = _row(line)
        if row is None or start:
            kept = "the row written after it was kept" if row else "the row is lost"
            faults.append(f"line {number} is torn (a write was cut off); {kept}")
        if row is None:
            continue
        if _is_intact(row, line[start:]):
            rows.append(row)
        else:
            faults.append(f"line {number} {DAMAGED}")
    return rows, faults


def _is_intact(row: dict[str, Any], line: str) -> bool:
    """Whether a row is as it was written; takes its checksum out of it. Rows of older versions end without one."""
    row.pop("crc32", None)
    content = line[: -len(', "crc32": "01234567"}')]
    return not line.endswith('"}') or line == f'{content}, "crc32": "{crc32(f"{content}}}".encode()):08x}"}}'


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


def _not_finite(rows: list[dict[str, Any]]) -> list[str]:
    """Removes such values from the rows. JSON has no NaN, so a run lists these metrics in `not_finite`."""
    found: dict[str, list[int]] = {}
    for row in rows:
        literal = [key for key, value in row.items() if not_a_number(value)]
        row |= dict.fromkeys(literal)
        for key in [*row.pop("not_finite", ()), *literal]:
            found.setdefault(key, []).append(int(row["step"]))
    return [f"{key} {NOT_FINITE} at {_count(len(steps), 'step')}, first {steps[0]}" for key, steps in found.items()]


def not_a_number(value: object) -> bool:
    """Whether a value is NaN or infinite."""
    return isinstance(value, float) and not math.isfinite(value)


def _row(line: str) -> tuple[dict[str, Any] | None, int]:
    """A line's row, and where it starts: a resumed run may have appended its row to a torn one."""
    for start in [0] + [place for place in range(1, len(line)) if line[place] == "{"]:
        try:
            row = json.loads(line[start:])
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            return row, start
    return None, 0


def _indexed(table: pd.DataFrame) -> pd.DataFrame:
    if "step" not in table:
        return pd.DataFrame(index=pd.Index([], name="step", dtype=int))
    table = table.astype({"step": int}).set_index("step").sort_index()
    return table.copy()  # rows of JSON make a block a column, and pandas warns of columns added to a hundred blocks


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
