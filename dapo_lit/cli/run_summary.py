"""The end of a run: a table before and after, why it ended early or taught nothing."""

import os
import shlex
import shutil
import sys
import textwrap
from pathlib import Path

import pandas as pd

from ablations.designs import own_parts
from ablations.files.layout import EVALUATIONS, kept_states
from ablations.files.metrics_file import read_metrics
from ablations.files.record import read_config
from ablations.files.tables import read_table
from ablations.screen import print_table
from dapo_lit.config import Config
from dapo_lit.config.algorithm import MAX_EMPTY_STEPS
from dapo_lit.runs.rollout_table import rollouts_file
from dapo_lit.runs.run_folder import RunFolder

SHOWN = 160
"""Characters of a response that are printed."""


def print_summary(folder: RunFolder, config: Config) -> None:
    rows = read_metrics(folder.path).table
    before, after = rows.iloc[0], rows.iloc[-1]
    label, k = config.task.label, config.evaluation.samples
    lines, run = list[tuple[str, str, str]](), folder.read_run()
    problems = run["problems"]["heldout"]
    for name, key in (
        (f"accuracy avg@{k}, {problems} held-out problems", f"avg@{k}"),
        ("mean length (tokens)", "length_mean"),
        ("truncated", "truncated_frac"),
        ("entropy (nats)", "entropy"),
    ):
        values = [row.get(f"eval/{label}/{key}") for row in (before, after)]
        if all(pd.notna(value) for value in values):
            start, end = (format(value, ".1f" if key == "length_mean" else ".3f") for value in values)
            lines.append((name, start, end))
    lines.append(("tokens generated", "", f"{after['tokens_generated']:,.0f}"))
    lines.append(("wall time (s, evaluation excluded)", "", f"{after['wall_s']:.0f}"))
    own = own_parts(read_config(folder.path)["algorithm"])
    parts = [f"{key.removeprefix('algorithm.')}={value}" for key, value in own.items()]
    title = ", ".join((run["arm"], *parts, f"seed {config.replicate}", f"{rows.index[-1]} steps"))
    print_table(("", "before", "after"), lines, title=title)
    if reason := early_end(run["status"], int(rows.index[-1]), config.budget.steps):
        print(reason)
    print("A single run cannot show a technique's effect or the variation between seeds.")


def what_next(run: Path) -> str:
    """The command for a page of a step whose training state a run kept; empty if it kept none."""
    steps = [step for step in kept_states(run) if rollouts_file(run, step).is_file()]
    if not steps:
        return ""
    play = [interpreter(), "-m", "dapo_lit.replay", str(run), f"step={steps[0]}", "--html"]
    return (
        f"The training state before step {steps[0]} was kept. `play` makes a page of that step to play with: five "
        f"switches, every token.\nplay    {shlex.join(play)}"
    )


def interpreter() -> str:
    """How this Python is called: `python` if that is the one on the path, else its file; for commands to be copied."""
    found = shutil.which("python")
    if found and os.path.abspath(found) == os.path.abspath(sys.executable):
        return "python"
    near = os.path.relpath(sys.executable)
    return sys.executable if near.startswith("..") else near


def early_end(status: str, step: int, steps: int) -> str:
    """Why a run with this status ended before its budget was spent; empty if it did not."""
    reasons = {
        "exhausted": f"no group of the last {MAX_EMPTY_STEPS} steps had both right and wrong responses",
        "solved": f"every response of step {step} was correct and no group was mixed in the last "
        f"{MAX_EMPTY_STEPS} steps; use a harder task",
    }
    return f"It ended at step {step} of {steps}: {reasons[status]}." if status in reasons and step < steps else ""


def nothing_learned(run: Path, label: str) -> str | None:
    """Why no update of a run had a gradient, and what to do; None if one had. `label` is the task's."""
    rows = read_metrics(run).table
    if (rows["optim/grad_norm"].fillna(0) > 0).any():
        return None
    steps = rows.iloc[1:]
    groups = steps["sampling/groups_generated"].sum()
    right, wrong = (
        round((steps[f"rollout/groups_all_{verdict}_frac"] * steps["sampling/groups_generated"]).sum())
        for verdict in ("correct", "wrong")
    )
    message = (
        f"nothing was learned: of the {groups:.0f} groups of {len(steps)} step{'' if len(steps) == 1 else 's'} {wrong} "
        f"were all wrong and {right} all right, and neither kind carries a gradient. "
    )
    message += (
        "Take harder problems."
        if right > wrong
        else "Take problems nearer the policy's level, a prompt with worked examples, or a rule that reads the answer "
        "where the policy writes it (docs/troubleshooting.md)."
    )
    files = sorted((run / EVALUATIONS / label).glob("step_*.parquet"))
    if not files:
        return message
    response = textwrap.shorten(read_table(files[-1])["response"].iloc[0], SHOWN, placeholder=" ...")
    return f"{message} One response of those in {files[-1]}: {response!r}"


def mostly_skipped(run: Path, updates_a_step: int) -> str | None:
    """Why a run that has ended says nothing: most of its updates were not finite and skipped; None if they were not."""
    rows = read_metrics(run).table
    skipped = rows["optim/bad_updates"].fillna(0)
    updated = (rows["optim/grad_norm"].notna() | (skipped > 0)).sum() * updates_a_step
    if skipped.sum() <= updated / 2:
        return None
    return (
        f"{skipped.sum():.0f} of {updated} updates had a loss or gradient that is not finite and were skipped "
        "(optim/bad_updates); lower algorithm.optimizer.lr, or a weight such as algorithm.kl.beta, or use "
        "policy.dtype=float32"
    )
