"""What runs recorded beside their metrics, as tables: sampled completions, and the tokens of replayed steps."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from dapo_lit.study.read.runs import Run, Runs, StudyError

File = tuple[Run, int, dict[str, str], Path]
"""Of a run and step, with more columns and the path."""


def rollouts(runs: Runs) -> pd.DataFrame:
    """A row a completion of every recorded step: study, arm, seed, step and the columns of the run's own files.

    Raises:
        StudyError: no run recorded any.
    """
    files: list[File] = [
        (run, _step(file), {}, file)
        for run in runs
        for file in sorted((run.folder / "rollouts").glob("step_*.parquet"))
    ]
    return _read(files, "no run recorded rollouts; logger.rollouts_every=10 keeps those of every tenth step")


def tokens(runs: Runs) -> pd.DataFrame:
    """A row a response token of every replayed step: study, arm, seed, step, `replayed` (the arm whose switches were
    replayed) and the columns of docs/replay.md.

    Raises:
        StudyError: no step was replayed.
    """
    files: list[File] = [
        (run, _step(folder), {"replayed": file.stem}, file)
        for run in runs
        for folder in sorted((run.folder / "replay").glob("step_*/"))
        for file in sorted(folder.glob("*.parquet"))
    ]
    return _read(files, "no step of these runs was replayed; python -m dapo_lit.replay RUN step=N does")


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step_"))


def _read(files: Iterable[File], otherwise: str) -> pd.DataFrame:
    parts = []
    for run, step, more, file in files:
        parts.append(pd.read_parquet(file).assign(study=run.study, arm=run.arm, seed=run.seed, step=step, **more))
    if not parts:
        raise StudyError(otherwise)
    table = pd.concat(parts, ignore_index=True)
    first = [name for name in ("study", "arm", "seed", "step", "replayed") if name in table]
    return table[first + [name for name in table.columns if name not in first]]
