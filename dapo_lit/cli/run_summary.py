"""What a finished run prints: the policy before and after training, and single questions where there are few."""

from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from dapo_lit.config import Config
from dapo_lit.runs.run_folder import RunFolder
from dapo_lit.study.read.metrics_file import read_metrics

FEW_QUESTIONS = 8
"""Up to this many held-out problems are printed one by one."""


def print_summary(folder: RunFolder, config: Config) -> None:
    rows, _ = read_metrics(folder.path)
    before, after = rows.iloc[0], rows.iloc[-1]
    label, k = config.task.label, config.evaluation.samples
    table = Table(title=f"{folder.read_run()['arm']}, seed {config.seed}, {rows.index[-1]} steps", title_justify="left")
    for column in ("", "before", "after"):
        table.add_column(column, justify="left" if not column else "right")
    problems = folder.read_run()["problems"]["heldout"]
    for name, key in (
        (f"accuracy avg@{k}, {problems} held-out problems", f"avg@{k}"),
        ("mean length (tokens)", "length_mean"),
        ("truncated", "truncated_frac"),
        ("entropy (nats)", "entropy"),
    ):
        values = [row.get(f"eval/{label}/{key}") for row in (before, after)]
        if all(pd.notna(value) for value in values):
            table.add_row(name, *(format(value, ".1f" if key == "length_mean" else ".3f") for value in values))
    table.add_row("tokens generated", "", f"{after['tokens_generated']:,.0f}")
    table.add_row("wall time (s, evaluation excluded)", "", f"{after['wall_s']:.0f}")
    Console().print(table)
    _print_predictions(folder, label)
    if line := sentence(before, after, f"eval/{label}/", k, problems):
        print(line)


def sentence(before: pd.Series, after: pd.Series, prefix: str, k: int, problems: int) -> str:
    """What the run did, in words; empty without an evaluation before and after."""
    values: list[tuple[Any, Any]] = [
        (before.get(prefix + key), after.get(prefix + key)) for key in (f"avg@{k}", "length_mean")
    ]
    if before.name == after.name or not all(pd.notna(value) for pair in values for value in pair):
        return ""
    accuracy, length = (_went(*pair, form) for pair, form in zip(values, (".3f", ".1f"), strict=True))
    return (
        f"By step {after.name} accuracy on {problems} held-out problems {accuracy} and mean length {length} tokens. "
        "One run shows neither what a technique adds nor what another seed gives."
    )


def _went(before: float, after: float, form: str) -> str:
    old, new = format(before, form), format(after, form)
    return f"stayed at {new}" if old == new else f"{'rose' if after > before else 'fell'} from {old} to {new}"


def _print_predictions(folder: RunFolder, label: str) -> None:
    """Prints the last evaluation question by question, if there are few."""
    files = sorted((folder.path / "eval" / label).glob("step_*.parquet"))
    if not files:
        return
    samples = pd.read_parquet(files[-1])
    if samples["problem_id"].nunique() > FEW_QUESTIONS:
        return
    for problem_id, answers in samples.groupby("problem_id", sort=False):
        predicted = answers["extracted"].fillna("none").mode()[0]
        print(f"{problem_id}  predicts {predicted}  {answers['correct'].mean():.3f} right")
