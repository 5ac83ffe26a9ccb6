"""Packed cells: the finished runs of a study as three Parquet tables in one folder, small enough to commit.

    cells.parquet     a row a cell: arm, seed, and run.json, config and command line as text
    metrics.parquet   a row a step of every cell; metrics as float32, the five axes exact
    samples.parquet   a row a sample of the last evaluation of each benchmark
    manifest.json     checksums of the three

Thirty runs take about 0.6 MB.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from dapo_lit.errors import DamagedError
from dapo_lit.manifest import MANIFEST, sum_of, write_manifest
from dapo_lit.run_files import read_table, write_arrow
from dapo_lit.study.read.run import AXES, Run, StudyError

CELLS, METRICS, SAMPLES = "cells.parquet", "metrics.parquet", "samples.parquet"
CELL = ["arm", "seed"]
SAMPLE = ["problem_id", "sample_index", "correct"]


def read_packed(folder: Path) -> list[Run]:
    """The runs that are packed in this folder."""
    try:
        cells = read_table(folder / CELLS)
        metrics = _by_cell(read_table(folder / METRICS).set_index("step"))
        samples = _by_cell(read_table(folder / SAMPLES))
        return [_run(folder, row, metrics, samples) for row in cells.to_dict("records")]
    except (DamagedError, OSError, ValueError, KeyError) as error:
        raise StudyError(f"{folder}: packed cells cannot be read ({type(error).__name__}: {error})") from None


def packed_config(folder: Path, arm: str, seed: int) -> dict[str, Any] | None:
    """The config of a finished cell that is packed in this folder; None if it is not there."""
    if not (folder / CELLS).is_file():
        return None
    cells = read_table(folder / CELLS, [*CELL, "config"])
    found = cells[(cells["arm"] == arm) & (cells["seed"] == seed)]
    return json.loads(str(found["config"].iloc[0])) if len(found) else None


def packed_seed(folder: Path, seed: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """arm -> run.json and config of the cells of a seed that are packed in this folder."""
    if not (folder / CELLS).is_file():
        return {}
    cells = read_table(folder / CELLS, [*CELL, "run", "config"])
    rows = cells[cells["seed"] == seed].to_dict("records")
    return {str(row["arm"]): (json.loads(row["run"]), json.loads(row["config"])) for row in rows}


def write_packed(runs: Iterable[Run], folder: Path) -> None:
    """Writes these runs, and no others, as the packed cells of `folder`; cells.parquet last."""
    listed = list(runs)
    cells = [
        {
            "arm": run.arm,
            "seed": run.seed,
            "run": json.dumps(
                {**run.record}
                | ({"faults": list(run.faults)} if run.faults else {})
                | ({"not_finite": sorted(run.not_finite)} if run.not_finite else {})
            ),
            "config": json.dumps(run.config),
            "overrides": "\n".join(run.overrides),
        }
        for run in listed
    ]
    metrics = [_labelled(run.metrics.reset_index(), run) for run in listed]
    samples = [
        _labelled(run.evaluation(name)[SAMPLE], run).assign(benchmark=name) for run in listed for name in run.benchmarks
    ]
    empty = pd.DataFrame(columns=[*CELL, *SAMPLE, "benchmark"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    table = pd.concat(metrics, ignore_index=True)
    numbers = [key for key in table if key not in {*CELL, *AXES}]  # the axes stay exact
    _write(table.assign(**table[numbers].apply(pd.to_numeric).astype("float32")), folder / METRICS)
    _write(pd.concat(samples, ignore_index=True) if samples else empty, folder / SAMPLES)
    _write(pd.DataFrame(cells), folder / CELLS)
    write_manifest(folder, {"files": {name: sum_of(folder / name) for name in (CELLS, METRICS, SAMPLES)}})


def pack(runs: Sequence[Run], folder: Path, before: Sequence[Run]) -> list[Run]:
    """Adds finished runs to the packed cells of `folder`, which are `before`; returns those added or replaced."""
    kept = {(run.arm, run.seed): run for run in before}
    added = [run for run in runs if run.folder.resolve() != (folder / run.arm / f"seed_{run.seed}").resolve()]
    write_packed({**kept, **{(run.arm, run.seed): run for run in added}}.values(), folder)
    return added


def _run(folder: Path, row: dict[Any, Any], metrics: dict[Any, pd.DataFrame], samples: dict[Any, pd.DataFrame]) -> Run:
    cell = row["arm"], int(row["seed"])
    record, own = json.loads(row["run"]) | {"arm": cell[0], "seed": cell[1]}, samples.get(cell)
    return Run.of(
        folder / cell[0] / f"seed_{cell[1]}",
        record,
        json.loads(row["config"]),
        metrics=metrics[cell],
        faults=tuple(record.get("faults", ())),
        not_finite=frozenset(record.get("not_finite", ())),
        overrides=tuple(row["overrides"].splitlines()),
        packed_samples={} if own is None else {str(name): part for name, part in own.groupby("benchmark")},
    )


def _by_cell(table: pd.DataFrame) -> dict[Any, pd.DataFrame]:
    keys = [table[name].to_numpy() for name in CELL]
    return dict(iter(table.drop(columns=CELL).groupby(keys, sort=False)))


def _labelled(table: pd.DataFrame, run: Run) -> pd.DataFrame:
    return table.assign(arm=run.arm, seed=run.seed)


def _write(table: pd.DataFrame, file: Path) -> None:
    """Floats are stored byte by byte, which compresses better."""
    floats = [key for key in table.columns if table[key].dtype.kind == "f"]
    write_arrow(
        file,
        pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(None),
        compression_level=19,
        use_dictionary=[key for key in table.columns if key not in floats],
        use_byte_stream_split=floats,
        write_statistics=False,
        store_schema=False,
    )
