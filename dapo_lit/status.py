"""Lists the cells of a study: done, running (with the time left), preempted, failed, missing.

    python -m dapo_lit.status runs/table1
    python -m dapo_lit.status runs/table1 pack=experiments/table1/runs     copies finished cells and base policies

Exit codes: 0 every cell is done; 3 some are not; 2 nothing can be read, with the reason.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dapo_lit.cli.arguments import CommandParser
from dapo_lit.errors import UserError
from dapo_lit.run_files import alive
from dapo_lit.study.read.packed_cells import pack
from dapo_lit.study.read.registration import FILE, read_plan
from dapo_lit.study.read.runs import USABLE, Run, Runs, load, packed_folders, run_folders, study_folder


@dataclass(frozen=True)
class CellProgress:
    """One line of `status`."""

    arm: str
    seed: int
    state: str
    """done, running, preempted, stopped, failed, lost (its process has ended) or missing."""
    step: int
    of_steps: int | None
    eta_s: float | None
    """Seconds left at the pace so far; None where it is not running or its budget is not in steps."""
    note: str
    log: str


def progress(runs: Runs, arms: tuple[str, ...] = (), seeds: tuple[int, ...] = ()) -> list[CellProgress]:
    """The cells of a study that were asked for (`arms`, `seeds`) and those that are there."""
    return [
        _cell(run) if run else CellProgress(arm, seed, "missing", 0, None, None, "asked for, no run folder", "")
        for (arm, seed), run in runs.cells(arms, seeds).items()
    ]


def _cell(run: Run) -> CellProgress:
    state, note = state_of(run)
    step = int(run.metrics.index.max()) if len(run.metrics) else 0
    budget = (run.config.get("budget") or {}).get("steps")
    steps = int(budget) if budget else None
    eta = None
    wall = run.series("wall_s")
    if state == "running" and steps and step > 0 and len(wall):
        eta = float(wall.iloc[-1]) / step * max(steps - step, 0)
    return CellProgress(run.arm, run.seed, state, step, steps, eta, note, _log(run.folder))


def state_of(run: Run) -> tuple[str, str]:
    """The state of a run in one word, and a note."""
    error = str(run.record.get("error") or "")
    if run.status in USABLE:
        return "done", "" if run.status == "finished" else run.status
    if run.status == "running" and not alive(run.record, run.folder):
        return "lost", f"process {run.record.get('pid')} has ended or hangs; resume=auto continues the run"
    return run.status, error


def _log(folder: Path) -> str:
    """The file to read when a run failed: its own log, else its metrics."""
    logs = sorted(folder.glob("*.log"))
    return str(logs[-1] if logs else folder / "metrics.jsonl")


def summary(table: list[CellProgress]) -> str:
    """`12 done, 1 failed, 2 missing of 15 cells`."""
    counts = pd.Series([cell.state for cell in table]).value_counts()
    return ", ".join(f"{count} {state}" for state, count in counts.items()) + f" of {len(table)} cells"


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = CommandParser(prog="python -m dapo_lit.status", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folders", nargs="+", type=Path, help="the study's folder, live or packed; several are read as one study"
    )
    parser.add_argument(
        "--pack", type=Path, metavar="DIR", help="write the finished cells and their base policies into DIR"
    )
    return parser.parse_args(arguments)


def expected(home: Path) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Arms and seeds that the study should have: the registered ones."""
    plan, _ = read_plan(home)
    return (plan.arms, plan.seeds) if plan else ((), ())


def read(folders: Sequence[Path]) -> tuple[Runs, Path]:
    """The runs below the folders and the study's own folder; no runs where the study is only registered so far."""
    first = folders[0]
    if len(folders) == 1 and (first / FILE).is_file() and not run_folders(first) + packed_folders(first):
        return Runs((), {}), first
    return load(*folders), study_folder(first)


def line(cell: CellProgress, width: int) -> str:
    """One cell as a line of text."""
    progress = f"{cell.step}/{cell.of_steps}" if cell.of_steps else f"{cell.step}"
    eta = "" if cell.eta_s is None else f"{cell.eta_s / 60:.0f} min left"
    note = "  ".join(part for part in (eta, cell.note) if part)
    log = f"  {cell.log}" if cell.state not in ("done", "missing", "stopped") else ""
    return f"{cell.arm + '/seed_' + str(cell.seed):<{width}}  {cell.state:<9} {progress:>9}  {note}{log}".rstrip()


def pack_bases(runs: Runs, bases: Path) -> list[str]:
    """Copies every base policy that these runs started from into `bases`; a sentence for each that cannot be."""
    from dapo_lit.build.base_policy import pack_base
    from dapo_lit.config import ConfigError, parse  # torch is below these; status without --pack does without
    from dapo_lit.config.identity import with_defaults

    lacking = []
    for weights, run in {
        str(run.record["base_weights"]): run for run in runs if run.record.get("base_weights")
    }.items():
        try:
            config = parse(with_defaults({**run.config, "study": None, "regime": None})[0])
            lacking.append(pack_base(config.policy, config.task, weights, bases))
        except ConfigError as fault:
            lacking.append(f"the base policy {weights} of {run.name} is not packed: {fault}")
    return [sentence for sentence in lacking if sentence]


def pack_study(runs: Runs, home: Path, folder: Path) -> None:
    """Adds the finished cells, their plan and their base policies to `folder`."""
    before = load(folder).usable.runs if folder.is_dir() and any(folder.iterdir()) else ()
    written = pack(runs.usable.runs, folder, before)
    if (home / FILE).is_file() and home.resolve() != folder.resolve():
        shutil.copy2(home / FILE, folder / FILE)
    for lack in pack_bases(runs, folder / "bases"):
        print(lack, file=sys.stderr)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    print(f"packed {len(written)} cells into {folder} ({size / 1e6:.1f} MB there)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        runs, home = read(options.folders)
        table = progress(runs, *expected(home))
        width = max(len(cell.arm) + len(str(cell.seed)) + 6 for cell in table)
        for cell in table:
            print(line(cell, width))
        print(summary(table))
        for warning in runs.warnings:
            print(warning, file=sys.stderr)
        if options.pack:
            pack_study(runs, home, options.pack)
    except UserError as reason:
        print(f"refused: {reason}", file=sys.stderr)
        return 2
    return 0 if all(cell.state == "done" for cell in table) and not runs.unreadable else 3


if __name__ == "__main__":
    sys.exit(main())
