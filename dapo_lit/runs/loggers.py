"""Displays of a run: a live bar or plain lines, tables of completions, loggers of Lightning's, Weights & Biases.

The record itself, `metrics.jsonl`, is written by run_folder.py.
"""

import math
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from dapo_lit.config import Config
from dapo_lit.config.sections import Budget
from dapo_lit.rollout.records import CollectedStep, Completion
from dapo_lit.runs.extensions import built
from dapo_lit.runs.run_folder import RunFolder
from dapo_lit.screen import printable

NUM_COMPLETIONS = 4
"""Rows of a printed table of completions."""
PAGE_EVERY_S = 20.0
"""At least so long between two writes of the run's page."""
MOST_ROWS = 1_000
"""Completions of a step that Weights & Biases gets."""
WIDE = 120
"""Columns of a terminal from which the live display has its bar and the speed."""


class Loggers:
    """Sends rows and completions to the displays that the config asks for."""

    def __init__(
        self, config: Config, folder: RunFolder, write_page: Callable[[Path], Path | None] | None = None
    ) -> None:
        self.config, self.path = config, folder.path
        self.write_page, self.page_due = write_page, 0.0
        self.console = Console(file=getattr(sys.stdout, "rich_proxied_file", None))  # a live bar puts itself in between
        self.display = Display(config, self.console)
        self.wandb = WandbRun(config, folder) if config.logger.wandb else None
        settings = config.logger.lightning
        self.lightning = built("logger.lightning", settings, folder.path) if settings else None
        if self.lightning:
            self.lightning.log_hyperparams(config.model_dump(mode="json"))

    def row(self, row: Mapping[str, Any]) -> None:
        self.display.row(row)
        if self.lightning:
            metrics = {key: float(value) for key, value in row.items() if value is not None and key != "step"}
            self.lightning.log_metrics({k: v for k, v in metrics.items() if k != "not_finite"}, step=row["step"])
        if self.wandb:
            self.wandb.row(row)
        if self.write_page and time.monotonic() > self.page_due:
            with suppress(OSError):  # the page is no reason to end a run
                self.write_page(self.path)
            self.page_due = time.monotonic() + PAGE_EVERY_S

    def rollouts(self, step: int, table: pd.DataFrame) -> None:
        if self.wandb:
            self.wandb.rollouts(step, table)

    def completions(self, collected: CollectedStep) -> None:
        """Every few steps, prints some completions: a right, a wrong and a truncated one if there are any."""
        every = self.config.logger.completions_every
        if not every or collected.step % every:
            return
        chosen = pick(collected)
        if self.config.logger.progress != "none":
            table = Table(title=f"step {collected.step}: sampled completions", title_justify="left", expand=False)
            for column in ("problem", "response", "reference", "verdict", "tokens"):
                table.add_column(column, overflow="fold", max_width=60)
            for problem, answer, completion in chosen:
                texts = [Text(printable(text)) for text in (problem, completion.text, answer)]
                table.add_row(*texts, verdict(completion), str(completion.num_tokens))
            self.console.print(table)

    def close(self, exit_code: int = 0) -> None:
        self.display.close()
        if self.lightning:
            self.lightning.finalize("failed" if exit_code else "success")
        if self.wandb:
            self.wandb.close(exit_code)


def pick(collected: CollectedStep) -> list[tuple[str, str, Completion]]:
    """(problem, reference answer, completion): the first of each verdict."""
    rows = [(g.problem.problem, g.problem.answer, c) for g in collected.generated for c in g.completions]
    first = {verdict(c): (p, a, c) for p, a, c in reversed(rows)}
    return list(first.values())[:NUM_COMPLETIONS]


def verdict(completion: Completion) -> str:
    return ("right" if completion.correct else "wrong") + (", truncated" if completion.truncated else "")


class Display:
    """A live bar on a terminal, one plain line per step elsewhere."""

    def __init__(self, config: Config, console: Console) -> None:
        style = config.logger.progress
        self.budget = config.budget
        self.total = config.budget.steps
        self.style = ("rich" if sys.stdout.isatty() else "plain") if style == "auto" else style
        self.console = console
        self.progress: Progress | None = None
        self.started = time.perf_counter()
        self.first: int | None = None
        self.first_row: Mapping[str, Any] = {}

    def row(self, row: Mapping[str, Any]) -> None:
        if self.first is None:  # step 0, or the first step of a resumed run
            self.first, self.started, self.first_row = int(row["step"]), time.perf_counter(), row
        if self.style == "none":
            return
        evaluation = [
            f"{k.removeprefix('eval/')} {v:.3f}" for k, v in row.items() if k.startswith("eval/") and "avg@" in k
        ]
        if row["step"] == 0:
            if evaluation:
                self.console.print(f"step 0  {'  '.join(evaluation)}", highlight=False)
            return
        done, steps = int(row["step"]) - self.first, remaining_steps(self.budget, self.first_row, row)
        pace = (time.perf_counter() - self.started) / done if done else 0.0
        eta = f"eta {timedelta(seconds=round(pace * steps))}" if steps is not None else ""
        if self.style == "rich":
            self._bar(row, steps, f"{pace:.1f} s/step  {eta}  " if done else "")
            if evaluation:
                self.console.print(f"step {row['step']}  {'  '.join(evaluation)}", highlight=False)
        else:
            line = [f"step {row['step']}/{self.total}", summary(row), *([eta] if eta else []), *evaluation]
            print("  ".join(line), flush=True)

    def _bar(self, row: Mapping[str, Any], steps: int | None, pace: str) -> None:
        wide = self.console.width >= WIDE
        if self.progress is None:
            self.progress = Progress(
                *([TextColumn("training"), BarColumn(bar_width=24)] if wide else []),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                console=self.console,
            )
            self.task = self.progress.add_task("", total=self.total, completed=self.first or 0)
            self.progress.start()
        total = self.total if steps is None else row["step"] + steps
        text = pace + (summary(row) if wide else summary(row).rpartition("  ")[0])
        self.progress.update(self.task, completed=row["step"], total=total, description=text)

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()


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


def summary(row: Mapping[str, Any]) -> str:
    """Summarises one row: accuracy, entropy, length and speed.

    >>> summary({"rollout/accuracy": 0.5, "rollout/entropy": 0.25, "perf/tokens_per_s": 900.0})
    'accuracy 0.500  entropy 0.250  900 tokens/s'
    """
    parts = [("accuracy", "rollout/accuracy", ".3f"), ("entropy", "rollout/entropy", ".3f")]
    parts += [("length", "rollout/length_mean", ".1f")]
    texts = [f"{name} {row[key]:{form}}" for name, key, form in parts if row.get(key) is not None]
    return "  ".join([*texts, f"{row['perf/tokens_per_s']:.0f} tokens/s"])


class WandbRun:
    """Weights & Biases: all keys over `step`; group = study, name = arm and seed; a resumed run keeps its id."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        import wandb  # a second of import, paid only by runs that use it

        run = folder.read_run()
        given = {key: value for key, value in (config.logger.wandb or {}).items() if value is not None}
        run_id = run.get("wandb_id") or secrets.token_hex(4)
        folder.write_run(wandb_id=run_id)
        self.run = wandb.init(
            **{"name": f"{run['arm']}-seed_{config.replicate}", "group": config.study_name}
            | given
            | {"id": run_id, "resume": "allow", "config": config.model_dump(mode="json"), "dir": folder.path}
            | {"settings": wandb.Settings(console="off", silent=True)}
        )
        self.table_type = wandb.Table
        offline = f"offline: wandb sync {Path(self.run.dir).parent}"
        print(f"wandb   {offline if given.get('mode') == 'offline' else self.run.url}", flush=True)
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def row(self, row: Mapping[str, Any]) -> None:
        self.run.log({key: math.nan if value is None else value for key, value in row.items()})

    def rollouts(self, step: int, table: pd.DataFrame) -> None:
        """A table of the completions of a step, with every column of reward."""
        shown = table.drop(columns=["prompt_ids", "response_ids", "rollout_logprobs"]).head(MOST_ROWS)
        shown.insert(0, "step", step)
        shown["tokens"] = table["response_ids"].map(len)
        self.run.log({"completions": self.table_type(dataframe=shown), "step": step})

    def close(self, exit_code: int) -> None:
        self.run.finish(exit_code=exit_code)
