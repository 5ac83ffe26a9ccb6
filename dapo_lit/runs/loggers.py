"""Displays of a run: a line a step, the page of the run, loggers of Lightning's, Weights & Biases.

The record itself, `metrics.jsonl`, is written by run_folder.py.
"""

import math
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from dapo_lit.config import Config
from dapo_lit.config.sections import Budget
from dapo_lit.log import log
from dapo_lit.runs.extensions import built
from dapo_lit.runs.run_folder import RunFolder
from dapo_lit.runs.wandb_checks import check_wandb, wandb_named

LISTS = (
    "prompt_ids", "response_ids", "rollout_logprobs", "observation_ids", "observation_places", "turns", "observations",
    "turn_rewards",
)  # fmt: skip
"""Columns of rollouts that have a list in each row."""
MOST_ROWS = 1_000
"""Completions of a step that Weights & Biases gets."""
SHOWN = {
    "rollout/accuracy": "accuracy {:.3f}",
    "rollout/entropy": "entropy {:.3f}",
    "rollout/length_mean": "length {:.1f}",
    "perf/tokens_per_s": "{:.0f} tok/s",
}
"""In the line of a step, where the row has them."""


def check_loggers(config: Config, run: Path) -> None:
    """Tries out the displays before an older run is touched.

    Raises ConfigError: one lacks a library or refuses its arguments; Weights & Biases has no login or does not answer.
    """
    if config.logger.lightning:
        built("logger.lightning", config.logger.lightning, run)
    if config.study is not None:  # a single run's was looked at before torch was loaded
        check_wandb(config.logger)


class Loggers:
    """Sends rows and completions to the displays that the config asks for."""

    def __init__(
        self, config: Config, folder: RunFolder, page: Callable[[Mapping[str, Any]], None] = lambda row: None
    ) -> None:
        self._page = page
        self.display = Display(config.budget) if config.logger.progress == "plain" else None
        self.wandb = WandbRun(config, folder) if config.logger.wandb else None
        self.lightning = lightning_logger(config, folder) if config.logger.lightning else None

    def row(self, row: Mapping[str, Any]) -> None:
        if self.display:
            self.display.row(row)
        if self.lightning:
            metrics = {key: float(value) for key, value in row.items() if value is not None and key != "step"}
            self.lightning.log_metrics({k: v for k, v in metrics.items() if k != "not_finite"}, step=row["step"])
        if self.wandb:
            self.wandb.row(row)

    def page(self, row: Mapping[str, Any]) -> None:
        """Gives a row to the page of the run."""
        with suppress(OSError):  # a failed page must not end a run
            self._page(row)

    def rollouts(self, step: int, table: pd.DataFrame) -> None:
        if self.wandb:
            self.wandb.rollouts(step, table)

    def close(self, exit_code: int = 0) -> None:
        if self.lightning:
            self.lightning.finalize("failed" if exit_code else "success")
        if self.wandb:
            self.wandb.run.finish(exit_code=exit_code)


def lightning_logger(config: Config, folder: RunFolder) -> Any:
    """The logger of Lightning's that the config names, with the config; a resumed run is one run of MLflow's too."""
    settings, known = config.logger.lightning or {}, folder.read_run().get("mlflow_run_id")
    is_mlflow = str(settings["_target_"]).endswith(".MLFlowLogger")
    logger = built("logger.lightning", {"run_id": known, **settings} if is_mlflow and known else settings, folder.path)
    # MLflow refuses another value of a parameter that it has, and a resumed run has resume=true.
    if not is_mlflow or logger.run_id != known:
        logger.log_hyperparams(config.model_dump(mode="json"))
    if is_mlflow:
        folder.write_run(mlflow_run_id=logger.run_id)
    return logger


class Display:
    """Prints a line for each step, with the time that is left."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.started = time.perf_counter()
        self.first_row: Mapping[str, Any] = {}

    def row(self, row: Mapping[str, Any]) -> None:
        if not self.first_row:  # step 0, or the first step of a resumed run
            self.started, self.first_row = time.perf_counter(), row
        line = [f"step {row['step']}/{self.budget.steps}"]
        line += [form.format(row[key]) for key, form in SHOWN.items() if row.get(key) is not None]
        if (steps := remaining_steps(self.budget, self.first_row, row)) is not None:
            pace = (time.perf_counter() - self.started) / (row["step"] - self.first_row["step"])
            left = str(timedelta(seconds=round(pace * steps)))
            # The line fits a terminal of 80 columns.
            line.append(f"eta {left.removeprefix('0:')}")
        line += [f"{k.removeprefix('eval/')} {v:.3f}" for k, v in row.items() if k.startswith("eval/") and "avg@" in k]
        print("  ".join(line), flush=True)


def remaining_steps(budget: Budget, first: Mapping[str, Any], row: Mapping[str, Any]) -> int | None:
    """Steps until the first of the budgets is spent, at the rate since the row `first`; None after no step.

    >>> first = {"step": 0, "tokens_generated": 0}
    >>> remaining_steps(Budget(steps=100, tokens_generated=240), first, {"step": 4, "tokens_generated": 80})
    8
    """
    done = row["step"] - first["step"]
    if not done:
        return None
    remaining = [budget.steps - row["step"]]
    spent = row["tokens_generated"] - first["tokens_generated"]
    if budget.tokens_generated is not None and spent > 0:
        remaining.append(math.ceil((budget.tokens_generated - row["tokens_generated"]) / spent * done))
    return max(0, min(remaining))


class WandbRun:
    """Weights & Biases: all keys over `step`; group = study, name = arm and seed; a resumed run keeps its id."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        import wandb  # a second of import, paid only by runs that use it

        run = folder.read_run()
        given = {key: value for key, value in (config.logger.wandb or {}).items() if value is not None}
        run_id = run.get("wandb_id") or secrets.token_hex(4)
        folder.write_run(wandb_id=run_id)
        with wandb_named():
            self.run = wandb.init(
                **{"name": f"{run['arm']}-seed_{config.replicate}", "group": config.study_name}
                | given
                | {"id": run_id, "resume": "allow", "config": config.model_dump(mode="json"), "dir": folder.path}
                | {"settings": wandb.Settings(console="off", silent=True)}
            )
        self.table_type = wandb.Table
        offline = f"offline: wandb sync {Path(self.run.dir).parent}"
        log.info(f"wandb   {offline if given.get('mode') == 'offline' else self.run.url}")
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def row(self, row: Mapping[str, Any]) -> None:
        self.run.log({key: math.nan if value is None else value for key, value in row.items()})

    def rollouts(self, step: int, table: pd.DataFrame) -> None:
        """A table of the completions of a step, with every column of reward."""
        shown = table.drop(columns=[name for name in table if name in LISTS]).head(MOST_ROWS)
        shown.insert(0, "step", step)
        shown["tokens"] = table["response_ids"].map(len)
        self.run.log({"completions": self.table_type(dataframe=shown), "step": step})
