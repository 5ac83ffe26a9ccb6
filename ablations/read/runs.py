"""Run folders read into tables. Nothing is repaired silently: whatever is odd about a run is one of its `faults`.

    runs = load("runs/table1")
    runs.frame()        # a row a step of every run, with study, arm and seed; "rollouts": a row a completion
    runs.missing()      # cells that are not usable, with the reason

A folder is a run if it is named `seed_<n>` and holds a file of one; `seed_0.replaced_1` is an older run and is skipped.
Packed cells are three tables for a study (packed_cells.py).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from ablations.designs import in_order
from ablations.errors import DamagedError, one_line
from ablations.files.layout import CELLS, CONFIG, RECORD, TABLES, is_run
from ablations.files.manifest import MANIFEST, RESTORE
from ablations.files.metrics_file import read_metrics
from ablations.files.record import check_config, read_config, read_record
from ablations.files.run_manifest import lost_files
from ablations.files.tables import read_table
from ablations.inputs import in_words, unexplained
from ablations.read.run import USABLE, Run, StudyError
from ablations.techniques import REGISTER, Technique
from ablations.texts import read_text
from ablations.trainer import remedies, same_experiment

RUN_NAME = re.compile(r"seed_\d+")
MOST_FOLDERS = 5_000
"""Folders that a search for runs enters before it gives up, as at the root of a disk; those of runs are not entered."""


@dataclass(frozen=True)
class Runs:
    """The runs of a study, arms in the order of its plan, seeds ascending."""

    runs: tuple[Run, ...]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Folders that could not be read, with the reason."""
    unverified: tuple[str, ...] = ()
    """Folders of runs or packed cells without a manifest, which nothing was compared with."""

    @property
    def warnings(self) -> list[str]:
        """Lines for the screen about the folders; one line for all that have no manifest."""
        lines = [f"unreadable: {folder}: {why}" for folder, why in self.unreadable.items()]
        if self.unverified:
            lines.append(f"unverified: no {MANIFEST} in {', '.join(self.unverified)}")
        return lines

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    @property
    def studies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.study for run in self.runs))

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.arm for run in self.runs))

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({run.seed for run in self.runs}))

    @property
    def techniques(self) -> tuple[str, ...]:
        """The techniques that these runs' configs name: one registered later is not in their study."""
        recorded = {switch for run in self.runs for switch in run.recorded_techniques}
        return tuple(switch for switch in REGISTER if switch in recorded)

    @property
    def records(self) -> dict[str, Technique]:
        """The same with their records, and the techniques in files of the user's that some run has."""
        own = {path: record for run in self.runs for path, record in run.own_techniques.items()}
        return {switch: REGISTER[switch] for switch in self.techniques} | own

    @cached_property
    def usable(self) -> "Runs":
        return Runs(tuple(run for run in self.runs if run.usable))

    def of(self, arm: str) -> tuple[Run, ...]:
        """The runs of an arm, by seed."""
        return tuple(run for run in self.runs if run.arm == arm)

    def keys(self) -> tuple[str, ...]:
        """Every metric that any run logged."""
        return self._keys

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        # as an array: to iterate over an index of texts takes ten times as long, and there are thousands of runs
        return tuple(sorted({str(key) for run in self.runs for key in run.metrics.columns.to_numpy()}))

    def frame(self, kind: Literal["metrics", "rollouts", "tokens"] = "metrics") -> pd.DataFrame:
        """All rows of all runs: columns study, arm, seed, step and every metric.

        `rollouts` gives a row a recorded completion instead; `tokens` a row a response token of every replayed step,
        with `replayed` (the arm whose switches were replayed) and the columns of docs/replay.md.
        """
        if kind != "metrics":
            return pd.concat(_recorded(self.runs, kind), ignore_index=True)
        parts = [run.metrics.reset_index().assign(study=run.study, arm=run.arm, seed=run.seed) for run in self.runs]
        # A step is there once a run: as an index it would not be unique.
        table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["step"])
        first = ["study", "arm", "seed", "step"]
        return table[first + sorted(c for c in table.columns if c not in first)]

    def missing(self, arms: Sequence[str] = (), seeds: Sequence[int] = ()) -> dict[tuple[str, int], str]:
        """Cells that have no usable run, with the reason; `arms` and `seeds` as in `cells`."""
        return {
            cell: "no run folder" if run is None else _why_unusable(run)
            for cell, run in self.cells(arms, seeds).items()
            if run is None or not run.usable
        }

    def cells(self, arms: Sequence[str] = (), seeds: Sequence[int] = ()) -> dict[tuple[str, int], "Run | None"]:
        """The cells that were asked for and those that are there, arms in the order given, with their runs.

        arms, seeds: what was asked for; empty: the arms, the seeds that are there.
        """
        found = {(run.arm, run.seed): run for run in self.runs}
        asked = {(arm, seed) for arm in arms or self.arms for seed in seeds or self.seeds}
        order = list(dict.fromkeys([*arms, *self.arms]))
        every = sorted({*asked, *found}, key=lambda cell: (order.index(cell[0]), cell[1]))
        return {cell: found.get(cell) for cell in every}


def _why_unusable(run: Run) -> str:
    reason = run.status if run.status not in USABLE else "no metrics"
    error = run.record.get("error")
    last = f" at step {run.metrics.index.max()}" if len(run.metrics) else " before its first step"
    return f"{reason}{last}" + (f": {error}" if error else "")


def _recorded(runs: Sequence[Run], kind: str) -> list[pd.DataFrame]:
    """The completions that runs recorded, or the tokens of steps that were replayed; a table a file."""
    pattern = "rollouts/step_*.parquet" if kind == "rollouts" else "replay/step_*/*.parquet"
    files, tables = [(run, file) for run in runs for file in sorted(run.folder.glob(pattern))], []
    for run, file in files:
        step = int((file if kind == "rollouts" else file.parent).stem.removeprefix("step_"))
        labels: dict[str, Any] = {"study": run.study, "arm": run.arm, "seed": run.seed, "step": step}
        if kind == "tokens":
            labels["replayed"] = file.stem
        table = read_table(file).assign(**labels)
        tables.append(table[[*labels, *(name for name in table.columns if name not in labels)]])
    if not tables:
        raise StudyError(
            f"no run recorded rollouts{remedies().no_rollouts}"
            if kind == "rollouts"
            else f"no step of these runs was replayed{remedies().no_tokens}"
        )
    return tables


def load(*paths: str | Path) -> Runs:
    """Reads every run below the given folders (a study, an arm, a run, or folders of packed cells).

    A cell found twice with one config hash is read once, from the first folder.
    """
    # Here, because the page of a run that trains needs the classes only.
    from ablations.read.packed_cells import read_packed
    from ablations.read.registration import last_plan

    found: dict[tuple[str, str, int], Run] = {}
    unreadable: dict[str, str] = {}
    homes: set[Path] = set()
    unverified: set[str] = set()
    for path in map(Path, paths):
        folders, tables = run_folders(path), packed_folders(path)
        if not folders and not tables:
            raise StudyError(f"{path}: no runs here; expected <arm>/seed_<n>/run.json or {CELLS} below it")
        for folder in (*folders, *tables):
            home = folder if folder in tables else folder.parent.parent
            # Of a folder that cannot be read as well: its plan still names the arms and their order.
            homes.add(home)
            if not (folder / MANIFEST).is_file():
                unverified.add(str(home))
            try:
                read = read_packed(folder) if folder in tables else [read_run(folder)]
            # One damaged run must not hide the others: it is named, and its pair is missing.
            except (DamagedError, OSError) as error:
                unreadable[str(folder)] = str(error)
                continue
            for run in read:
                # The first folder named wins. A cell counted twice would be two values of one base policy.
                twin = found.setdefault((run.study, run.arm, run.seed), run)
                if not same_experiment(twin.record, twin.config, run.record, run.config):
                    raise StudyError(
                        f"{twin.folder} and {run.folder} are the same cell with different configs or base policies; "
                        "name one of them"
                    )
                if names := unexplained(twin.record, twin.config, run.record, run.config):
                    raise StudyError(
                        f"{twin.folder} and {run.folder} are the same cell and read different things: "
                        f"{in_words(names, run.config)}; name one of them"
                    )
    if not found:
        raise StudyError(f"none of the run folders can be read: {one_line(unreadable.values())}")
    # The plan's order and not the folders', so that two reports of one study have the same rows.
    plans = [last_plan(home) for home in sorted(homes)]
    order = in_order((run.arm for run in found.values()), [arm for plan in plans if plan for arm in plan.arms])
    runs = sorted(found.values(), key=lambda run: (run.study, order.index(run.arm), run.seed))
    return Runs(tuple(runs), unreadable, tuple(sorted(unverified)))


def packed_folders(path: Path) -> list[Path]:
    """Folders at or below `path` with packed cells."""
    return sorted(folder for folder in _below(path) if (folder / CELLS).is_file())


def study_folder(path: Path) -> Path:
    """The folder of a study that holds its arms or its packed cells, and study.json: at or below `path`."""
    if tables := packed_folders(path):
        return tables[0]
    folders = run_folders(path)
    return folders[0].parent.parent if folders else path


def run_folders(path: Path) -> list[Path]:
    """Run folders at or below `path`, sorted; a link named seed_3 is one, wherever it leads."""
    if not path.is_dir():
        raise StudyError(f"{path}: no such folder")
    return sorted(folder for folder in _below(path) if RUN_NAME.fullmatch(_name(folder)) and is_run(folder))


def _name(folder: Path) -> str:
    return folder.name if folder.name not in ("", "..") else folder.resolve().name


def _below(path: Path) -> Iterator[Path]:
    """A folder and those below it, without those of a run. Links are followed; one that leads back is not."""
    waiting, entered = [path], set[Path]()
    while waiting:
        # Depth first with a list of its own: a chain of links is as deep as somebody made it.
        yield (folder := waiting.pop())
        # Not into a run: it has thousands of files, and none is a run. By the resolved path: a link may lead up.
        if not is_run(folder) and (place := folder.resolve()) not in entered:
            entered.add(place)
            if len(entered) > MOST_FOLDERS:
                raise StudyError(f"{path}: more than {MOST_FOLDERS:,} folders below; name the study's folder")
            try:
                waiting += sorted((inner for inner in folder.iterdir() if inner.is_dir()), reverse=True)
            except OSError as reason:
                raise StudyError(f"{folder}: cannot be read ({reason.strerror}); name the study's folder") from None


def read_run(folder: Path) -> Run:
    """Reads one run folder."""
    record, config, metrics = read_record(folder), read_config(folder), read_metrics(folder)
    if not {"arm", "seed"} <= record.keys():
        reason = "names no arm and seed" if record else "is missing"
        raise DamagedError(f"{folder / RECORD} {reason}; {RESTORE}")
    check_config(config, folder / CONFIG)
    file = folder / "overrides.txt"
    return Run.of(
        folder,
        record,
        config,
        metrics=metrics.table,
        faults=(*metrics.faults, *lost_files(folder, *TABLES)),
        not_finite=metrics.not_finite,
        overrides=tuple(read_text(file, errors="replace").splitlines()) if file.is_file() else (),
    )


def load_first(*paths: str | Path) -> Runs:
    """The usable runs of the first folder that holds any: a study of your own before a small one that is shipped."""
    reasons = []
    for path in paths:
        try:
            if found := load(path).usable.runs:
                return Runs(found)
            reasons.append(f"{path}: no finished run")
        except StudyError as reason:
            reasons.append(str(reason))
    raise StudyError("; ".join(reasons))
