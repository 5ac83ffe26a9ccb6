"""Reads the completions that a run recorded (`logger.rollouts_every`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dapo_lit.config import ConfigError
from dapo_lit.rollout.reflection import ReflectionPatterns
from dapo_lit.run_files import check_kept, read_table


def recorded_rollouts(run: Path, columns: Sequence[str]) -> pd.DataFrame:
    """The recorded completions with a column `step`; one that was carried over belongs to the step that sampled it."""
    check_kept(run, "rollouts/")
    files = sorted((run / "rollouts").glob("step_*.parquet"))
    if not files:
        raise ConfigError(f"{run}: no recorded rollouts; train with, for example, logger.rollouts_every=1")
    tables = []
    for file in files:
        table = read_table(file, [*columns, "submitted_step"])
        table["step"] = int(file.stem.removeprefix("step_"))
        tables.append(table[table["submitted_step"] == table["step"]])
    return pd.concat(tables, ignore_index=True)


def counted_responses(run: Path) -> pd.DataFrame:
    """The responses that the metrics `rollout/*` count.

    Groups after the last accepted one are left out: short responses end first, so they are a biased sample.
    """
    table = recorded_rollouts(run, ["problem_id", "response", "correct", "examined"])
    chosen = table["examined"] & table["correct"].notna()
    return table.loc[chosen, ["step", "problem_id", "response", "correct"]].astype({"correct": bool})


def reflection_by_step(responses: pd.DataFrame, patterns: ReflectionPatterns) -> pd.DataFrame:
    """A row a step: `step`, `responses`, and the share that reflects of all, of the correct and of the wrong ones."""
    found = responses.assign(reflects=[float(patterns.reflects(text)) for text in responses["response"]])
    rows = found.groupby("step")["reflects"].agg(responses="size", reflection_frac="mean")
    for suffix, chosen in (("correct", found["correct"]), ("wrong", ~found["correct"])):
        rows[f"reflection_frac_{suffix}"] = found[chosen].groupby("step")["reflects"].mean()
    return rows.reset_index()


def first_occurrences(responses: pd.DataFrame, patterns: ReflectionPatterns) -> dict[str, tuple[Any, str]]:
    """For each pattern that occurs, its first response by step, and the words around it."""
    firsts: dict[str, tuple[Any, str]] = {}
    for row in responses.sort_values("step", kind="stable").itertuples():
        for name, words in patterns.excerpts(str(row.response)).items():
            firsts.setdefault(name, (row, words))
    return firsts
