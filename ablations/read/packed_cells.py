"""Packed cells: the finished runs of a study as three Parquet tables in one folder, small enough to commit.

    cells.parquet     a row a cell: arm, seed, and run.json, config and command line as text
    metrics.parquet   a row a step of every cell; metrics as float32, the five axes exact
    samples.parquet   a row a sample of the last evaluation of each benchmark
    manifest.json     checksums of the three

Thirty runs take about 0.6 MB.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ablations.border import (
    NUMBER,
    TEXT,
    WHOLE,
    FolderName,
    checked,
    checked_table,
)
from ablations.errors import DamagedError
from ablations.files.atomic import replacing
from ablations.files.layout import CELLS
from ablations.files.manifest import MANIFEST, sum_of, write_manifest
from ablations.files.record import check_config, checked_record
from ablations.files.tables import read_table, write_arrow
from ablations.read.run import AXES, SAMPLE_KINDS, Run, StudyError
from ablations.texts import json_tree

METRICS, SAMPLES = "metrics.parquet", "samples.parquet"
CELL_KINDS = {"arm": TEXT, "seed": WHOLE}
CELL = [*CELL_KINDS]
MOST_VALUES = 100_000
"""In cells.parquet, which has five a cell."""


@dataclass(frozen=True)
class Cell:
    """A row of cells.parquet, checked."""

    arm: str
    seed: int
    record: dict[str, Any]
    config: dict[str, Any]
    overrides: tuple[str, ...]


def read_cells(folder: Path, arm: str | None = None, seed: int | None = None) -> list[Cell]:
    """The packed cells of a folder, or those of an arm or a seed; none where none are packed.

    Raises StudyError: one line with the file, the cell, the field and what it must be.
    """
    file = folder / CELLS
    if not file.is_file():
        return []
    try:
        columns = {**CELL_KINDS, "run": TEXT, "config": TEXT, "overrides": TEXT}
        table = checked_table(read_table(file, most=MOST_VALUES), columns, file)
        checked(table["arm"].drop_duplicates().to_list(), list[FolderName], f"{file}, arm")
        checked_table(table, {}, file, key=("arm", "seed"))
        rows = [
            row for row in table.to_dict("records") if arm in (None, row["arm"]) and seed in (None, int(row["seed"]))
        ]
        return [_cell(row, f"{file}, {row['arm']}/seed_{row['seed']}") for row in rows]
    except (DamagedError, OSError) as error:
        raise StudyError(f"packed cells cannot be read: {error}") from None


def _cell(row: Mapping[Any, Any], place: str) -> Cell:
    named = {"arm": str(row["arm"]), "seed": int(row["seed"])}
    config = json_tree(row["config"], f"{place}, config")
    checked(config, dict[str, Any], f"{place}, config")
    check_config(config, f"{place}, config")
    return Cell(
        **named,  # type: ignore[arg-type]
        # The columns decide which cell it is: tables are joined by them.
        record=checked_record(json_tree(row["run"], f"{place}, run"), f"{place}, run") | named,
        config=config,
        overrides=tuple(row["overrides"].splitlines()),
    )


def read_packed(folder: Path) -> list[Run]:
    """The runs that are packed in this folder. Raises StudyError, as `read_cells`."""
    cells = read_cells(folder)
    try:
        metrics, samples = folder / METRICS, folder / SAMPLES
        rows = checked_table(
            read_table(metrics),
            {**CELL_KINDS, "step": WHOLE},
            metrics,
            others=NUMBER,
            key=("arm", "seed", "step"),
        )
        answers = checked_table(read_table(samples), {**CELL_KINDS, **SAMPLE_KINDS, "benchmark": TEXT}, samples)
        by_cell, answers_by_cell = _by_cell(rows.set_index("step").sort_index()), dict[Any, dict[str, pd.DataFrame]]()
        for (arm, seed, benchmark), part in _by_cell(answers, "benchmark").items():
            answers_by_cell.setdefault((arm, seed), {})[str(benchmark)] = part
        if lacking := [f"{cell.arm}/seed_{cell.seed}" for cell in cells if (cell.arm, cell.seed) not in by_cell]:
            raise DamagedError(f"{metrics}: has no row of {lacking[0]}")
        return [_run(folder, cell, by_cell, answers_by_cell.get((cell.arm, cell.seed), {})) for cell in cells]
    except (DamagedError, OSError) as error:
        raise StudyError(f"packed cells cannot be read: {error}") from None


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
    samples = [_labelled(run.evaluation(name), run).assign(benchmark=name) for run in listed for name in run.benchmarks]
    empty = pd.DataFrame(columns=[*CELL, *SAMPLE_KINDS, "benchmark"])
    folder.mkdir(parents=True, exist_ok=True)
    # Float32 halves the file; a count of tokens above 2^24 would be rounded, and budgets are compared by it.
    table = pd.concat(metrics, ignore_index=True)
    numbers = [key for key in table if key not in {*CELL, *AXES}]  # the axes stay exact
    tables = {
        # Gets its name last: a folder without this file is no packed study to any reader.
        CELLS: pd.DataFrame(cells),
        SAMPLES: pd.concat(samples, ignore_index=True) if samples else empty,
        METRICS: table.assign(**table[numbers].apply(pd.to_numeric).astype("float32")),
    }
    with ExitStack() as drafts:  # which get their names from the last to the first, or none of them
        for name, content in tables.items():
            _write(content, drafts.enter_context(replacing(folder / name)))
        # All are written, so that a full disk leaves the cells of before. A kill from here on leaves cells that nothing
        # was compared with, never sums of others.
        (folder / MANIFEST).unlink(missing_ok=True)
    write_manifest(folder, {"files": {name: sum_of(folder / name) for name in (CELLS, METRICS, SAMPLES)}})


def pack(runs: Sequence[Run], folder: Path, before: Sequence[Run]) -> list[Run]:
    """Adds finished runs to the packed cells of `folder`, which are `before`; returns those added or replaced."""
    kept = {(run.arm, run.seed): run for run in before}
    if not runs and not kept:
        raise StudyError(f"{folder}: no cell has finished, so there is nothing to pack")
    # A packed run that was read back names its own place here: it is in `before`.
    added = [run for run in runs if run.folder.resolve() != (folder / run.arm / f"seed_{run.seed}").resolve()]
    write_packed({**kept, **{(run.arm, run.seed): run for run in added}}.values(), folder)
    return added


def _run(folder: Path, cell: Cell, metrics: dict[Any, pd.DataFrame], samples: Mapping[str, pd.DataFrame]) -> Run:
    record = cell.record
    return Run.of(
        folder / cell.arm / f"seed_{cell.seed}",
        record,
        cell.config,
        metrics=metrics[cell.arm, cell.seed],
        faults=tuple(record.get("faults", ())),
        not_finite=frozenset(record.get("not_finite", ())),
        overrides=cell.overrides,
        packed_samples=samples,
    )


def _by_cell(table: pd.DataFrame, *further: str) -> dict[Any, pd.DataFrame]:
    """The rows of each cell, and of each value of `further` columns, in their order; without the cell's columns."""
    keys = [*CELL, *further]
    # By the columns' names: pandas writes arrays of keys out as text, at seconds for long ones.
    number = table.groupby(keys, sort=False).ngroup().to_numpy()
    # Sorted once, so that a cell is a slice; hundreds of selections of rows take seconds.
    order = np.argsort(number, kind="stable")
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    names = table[keys].iloc[order[starts]].itertuples(index=False, name=None)
    rows = table.drop(columns=CELL).iloc[order]
    # A table without rows has no cell, and still an end.
    return {name: rows.iloc[a:b] for name, a, b in zip(names, starts, [*starts[1:], len(rows)], strict=False)}


def _labelled(table: pd.DataFrame, run: Run) -> pd.DataFrame:
    return table.assign(arm=run.arm, seed=run.seed)


def _write(table: pd.DataFrame, file: Path) -> None:
    """Floats are stored byte by byte, which compresses better."""
    floats = [key for key in table.columns if table[key].dtype.kind == "f"]
    # No metadata: it names versions of pandas and pyarrow, and the same cells would be other bytes elsewhere.
    # No statistics: readers take whole tables.
    write_arrow(
        file,
        pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(None),
        compression_level=19,
        use_dictionary=[key for key in table.columns if key not in floats],
        use_byte_stream_split=floats,
        write_statistics=False,
        store_schema=False,
    )
