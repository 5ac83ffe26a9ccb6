"""The cells of a study while it runs: which are done, running, failed or missing, the time left."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dapo_lit.run_files import alive
from dapo_lit.study.read.runs import USABLE, Run, Runs


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
