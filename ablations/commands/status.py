"""Lists the cells of a study: done, running (with the time left), preempted, failed, missing.

    ablations status runs/table1
    ablations status runs/table1 --json
    ablations status runs/table1 pack=experiments/table1/runs     copies finished cells and base policies

Exit codes: 0 every cell is done; 3 some are not; 2 nothing can be read, with the reason.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.arguments import add_json, parser_of
from ablations.errors import UserError
from ablations.files.atomic import write_text
from ablations.files.claim import alive
from ablations.files.layout import METRICS
from ablations.read.packed_cells import pack
from ablations.read.registration import FILE, MOST_BYTES, last_plan
from ablations.read.runs import USABLE, Run, Runs, load, packed_folders, run_folders, study_folder
from ablations.screen import on_screen
from ablations.texts import read_text

SCHEMA = "dapo_lit/status/1"
PackBases = Callable[[Runs, Path], list[str]]
"""Copies every base policy that these runs started from into a folder; a sentence for each that cannot be."""


def state_of(run: Run) -> tuple[str, str]:
    """done, running, preempted, stopped, failed or lost (its process has ended), and a note."""
    if run.status in USABLE:
        return "done", "" if run.status == "finished" else run.status
    if run.status == "running" and not alive(run.record, run.folder):
        return "lost", f"process {run.record.get('pid')} has ended or hangs; resume=auto continues the run"
    return run.status, str(run.record.get("error") or "")


def seconds_left(run: Run) -> float | None:
    """Seconds at the pace so far; None before the first step, and where the run has no budget in steps."""
    steps, wall = (run.config.get("budget") or {}).get("steps"), run.series("wall_s")
    step = run.metrics.index.max() if len(run.metrics) else 0
    return float(wall.iloc[-1]) / step * max(steps - step, 0) if steps and step > 0 and len(wall) else None


def cell(arm: str, seed: int, run: Run | None) -> dict[str, Any]:
    """A cell as `--json` prints it; a run that did not go well with the file to read (`log`)."""
    found: dict[str, Any] = {"arm": arm, "seed": seed, "state": "missing", "step": 0, "steps": None}
    found |= {"seconds_left": None, "wall_s": None, "note": "requested, no run folder", "folder": None, "log": None}
    if run is None:
        return found
    state, note = state_of(run)
    logs, wall = [*sorted(run.folder.glob("*.log"), reverse=True), run.folder / METRICS], run.series("wall_s")
    return found | {
        "state": state,
        "step": int(run.metrics.index.max()) if len(run.metrics) else 0,
        "steps": (run.config.get("budget") or {}).get("steps"),
        "seconds_left": seconds_left(run) if state == "running" else None,
        "wall_s": float(wall.iloc[-1]) if len(wall) else None,
        "note": note,
        "folder": str(run.folder),
        "log": None if state in ("done", "stopped") else str(logs[0]),
    }


def line(row: Mapping[str, Any], width: int) -> str:
    """A cell as a line of text."""
    left = row["seconds_left"]
    notes = ["" if left is None else f"{left / 60:.0f} min left", row["note"], row["log"]]
    progress = f"{row['step']}/{row['steps']}" if row["steps"] else f"{row['step']}"
    name = f"{row['arm']}/seed_{row['seed']}"
    return f"{name:<{width}}  {row['state']:<9} {progress:>5}  {'  '.join(filter(None, notes))}".rstrip()


def answer(runs: Runs, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `--json` prints (schemas/status.json)."""
    states = Counter(row["state"] for row in rows)
    return {
        "schema": SCHEMA,
        "studies": list(runs.studies),
        "cells": list(rows),
        "states": dict(states),
        "wall_s": sum(row["wall_s"] or 0.0 for row in rows),
        "warnings": runs.warnings,
    }


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of("status", (__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folders", nargs="+", type=Path, help="the study's folder, live or packed; several are read as one study"
    )
    parser.add_argument(
        "--pack", type=Path, metavar="DIR", help="write the finished cells and their base policies into DIR"
    )
    parser.add_argument("--bases", type=Path, metavar="DIR", help="with --pack: for the base policies, not DIR/bases")
    add_json(parser)
    options = parser.parse_args(arguments)
    if options.pack and options.json == "true":
        parser.error("--json prints the state of cells and --pack copies them; run the command twice")
    return options


def read(folders: Sequence[Path]) -> tuple[Runs, Path]:
    """The runs below the folders and the study's own folder; no runs where the study is only registered so far."""
    first = folders[0]
    if len(folders) == 1 and (first / FILE).is_file() and not run_folders(first) + packed_folders(first):
        return Runs((), {}), first
    return load(*folders), study_folder(first)


def no_trainer(runs: Runs, bases: Path) -> list[str]:
    """Copies nothing: a base policy is the trainer's to read."""
    known = any(run.record.get("base_weights") for run in runs)
    return ["the base policies are not packed: only the trainer's own command does that"] if known else []


def pack_study(runs: Runs, home: Path, folder: Path, bases: Path, pack_bases: PackBases) -> None:
    """Adds the finished cells and their plan to `folder`, and their base policies to `bases`."""
    # Of a pack that was cut off there may be files and no cells yet.
    holds_cells = folder.is_dir() and (packed_folders(folder) or run_folders(folder))
    before = load(folder).usable.runs if holds_cells else ()
    written = pack(runs.usable.runs, folder, before)
    if (home / FILE).is_file() and home.resolve() != folder.resolve():
        write_text(folder / FILE, read_text(home / FILE, MOST_BYTES))
    for lack in pack_bases(runs, bases):
        print(lack, file=sys.stderr)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    print(f"packed {len(written)} cells into {folder} ({size / 1e6:.1f} MB there)")


@on_screen()
def main(arguments: Sequence[str] | None = None, pack_bases: PackBases = no_trainer) -> int:
    """Runs the command; returns its exit code."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        runs, home = read(options.folders)
        plan = last_plan(home)
        cells = runs.cells(plan.arms, plan.seeds) if plan else runs.cells()
        rows = [cell(arm, seed, run) for (arm, seed), run in cells.items()]
        states = Counter(row["state"] for row in rows)
        if options.json == "true":
            print(json.dumps(answer(runs, rows), indent=1, allow_nan=False))
        else:
            width = max(len(f"{arm}/seed_{seed}") for arm, seed in cells)
            print(*(line(row, width) for row in rows), sep="\n")
            print(", ".join(f"{count} {state}" for state, count in states.most_common()), f"of {len(rows)} cells")
        for warning in runs.warnings:
            print(warning, file=sys.stderr)
        if options.pack:
            pack_study(runs, home, options.pack, options.bases or options.pack / "bases", pack_bases)
    except UserError as reason:
        print(f"refused: {reason}", file=sys.stderr)
        return 2
    return 0 if states.keys() == {"done"} and not runs.unreadable else 3
