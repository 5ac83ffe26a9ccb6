"""Reads the completions that a run recorded (`logger.rollouts_every`)."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dapo_lit.config import ConfigError
from dapo_lit.rollout.reflection import Response
from dapo_lit.run_files import read_table


def recorded_rollouts(run: Path, columns: Sequence[str]) -> pd.DataFrame:
    """The recorded completions with a column `step`; one that was carried over belongs to the step that sampled it."""
    files = sorted((run / "rollouts").glob("step_*.parquet"))
    if not files:
        raise ConfigError(f"{run}: no recorded rollouts; train with, for example, logger.rollouts_every=1")
    tables = []
    for file in files:
        table = read_table(file, [*columns, "submitted_step"])
        table["step"] = int(file.stem.removeprefix("step_"))
        tables.append(table[table["submitted_step"] == table["step"]])
    return pd.concat(tables, ignore_index=True)


def counted_responses(run: Path) -> list[Response]:
    """The responses that the metrics `rollout/*` count.

    Groups after the last accepted one are left out: short responses end first, so they are a biased sample.
    """
    table = recorded_rollouts(run, ["problem_id", "response", "correct", "examined"])
    chosen = table["examined"] & table["correct"].notna()
    columns = table.loc[chosen, ["step", "problem_id", "response", "correct"]]
    return [Response(*row) for row in columns.itertuples(index=False, name=None)]
