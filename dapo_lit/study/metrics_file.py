"""metrics.jsonl read as its writer means it: append-only, the last row of a step counts, a kill may tear a line."""

import json
from pathlib import Path
from typing import Any

import pandas as pd


def read_metrics(folder: Path) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The rows of a run by step, and what is odd about them.

    Returns:
        A frame with index `step` (sorted, unique); and one sentence for each of: torn lines, steps logged more than
        once, steps that are missing between the first and the last, values that are NaN or infinite.
    """
    packed = folder / "metrics.parquet"
    if packed.is_file():
        return _indexed(pd.read_parquet(packed)), ()
    file = folder / "metrics.jsonl"
    if not file.is_file():
        return _indexed(pd.DataFrame()), ("no metrics.jsonl",)
    rows, faults = _parse(file)
    table = pd.DataFrame(rows)
    if "step" in table:
        doubled = int(table["step"].duplicated().sum())
        if doubled:
            faults.append(f"{_count(doubled, 'step')} logged again after a resume; the last row of each counts")
        table = table.drop_duplicates("step", keep="last")
    table = _indexed(table)
    steps = table.index[table.index > 0]
    gaps = int(steps.max() - steps.min() + 1 - len(steps)) if len(steps) else 0
    if gaps:
        faults.append(f"{_count(gaps, 'step')} missing between {steps.min()} and {steps.max()}")
    return table, tuple(faults)


def _parse(file: Path) -> tuple[list[dict[str, Any]], list[str]]:
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    not_finite: dict[str, list[int]] = {}
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        row, whole = _row(line)
        if not whole:
            kept = "the row written after it was kept" if row else "the row is lost"
            faults.append(f"line {number} is torn (a write was cut off); {kept}")
        if row is None:
            continue
        for key, value in row.items():
            if isinstance(value, float) and not -float("inf") < value < float("inf"):
                not_finite.setdefault(key, []).append(int(row["step"]))
        rows.append({key: None if key in not_finite and not_a_number(value) else value for key, value in row.items()})
    for key, steps in not_finite.items():
        faults.append(f"{key} is NaN or infinite at {_count(len(steps), 'step')}, first {steps[0]}")
    return rows, faults


def not_a_number(value: object) -> bool:
    """True of NaN and the infinities."""
    return isinstance(value, float) and not -float("inf") < value < float("inf")


def _row(line: str) -> tuple[dict[str, Any] | None, bool]:
    """A line's row, and whether the line is whole. A resumed run may have appended its row to a torn one."""
    starts = [0] + [place for place in range(1, len(line)) if line[place] == "{"]
    for start in starts:
        try:
            row = json.loads(line[start:])
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            return row, start == 0
    return None, False


def _indexed(table: pd.DataFrame) -> pd.DataFrame:
    if "step" not in table:
        return pd.DataFrame(index=pd.Index([], name="step", dtype=int))
    return table.astype({"step": int}).set_index("step").sort_index()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
