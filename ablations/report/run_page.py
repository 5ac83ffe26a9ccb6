"""The page of one run, which is written while it trains: its curves, its completions, and the commands that ablate."""

from collections.abc import Iterator
from pathlib import Path

from ablations.border import is_share
from ablations.command_text import command
from ablations.compare.statistics import pairs_needed
from ablations.files.layout import kept_states, playable_page
from ablations.metrics import METRICS
from ablations.read.outcomes import amount, in_words, unit
from ablations.read.runs import Run, Runs, read_run
from ablations.report.document import Document, Part, Table, switch_buttons
from ablations.report.explore import exploration
from ablations.report.html import write_html
from ablations.techniques import REGISTER

OWN = ("study_name=", "seed=", "resume=", "replay.record=", "runs_dir=", "logger.")
"""Overrides of a run that a study of it does not take over."""


def write_run_page(folder: Path) -> Path | None:
    """Writes run.html into the folder of a run, finished or not, and returns its path; None before its first row."""
    run = read_run(folder)
    if run.metrics.empty:
        return None
    evaluated = [str(key) for key in run.metrics if str(key).startswith("eval/") and "/avg@" in str(key)]
    own = [str(key) for key in run.metrics if key in METRICS]
    metric, steps = "rollout/accuracy", run.config["budget"]["steps"]
    live = run.status == "running"
    parts: list[Part] = [
        f"Step {run.metrics.index.max()} of {steps}, {run.status}." + (" This page loads itself anew." if live else ""),
        "## What would it be without a technique?",
        *_playable(folder),
        _commands(run),
        _course(run, [*evaluated, metric, "rollout/entropy", "rollout/length_mean", "rollout/truncated_frac", *own]),
        *(f"`{key}`, {METRICS[key].words}: {METRICS[key].definition}" for key in own),
    ]
    title = f"{run.study}: {run.arm}, seed {run.seed}"
    explored = exploration(Runs((run,)), metric, live=live)
    return write_html(Document(title, parts, explored), folder / "run.html")


def _playable(folder: Path) -> Iterator[Part]:
    """A button for each technique and each playable page that was made of a step of the run."""
    for step in kept_states(folder):
        if playable_page(folder, step).is_file():
            yield f"Step {step} to play with, under the other position of"
            address = playable_page(Path(), step).as_posix()
            yield switch_buttons(address)


def _commands(run: Run) -> str:
    """Commands that compare this run with runs without a technique, as Markdown."""
    text = "One run cannot show what a technique does, or how much seeds differ."
    if recorded := (run.config.get("replay") or {}).get("record"):
        play = command("replay", str(run.folder), f"step={recorded[0]}", "--html")
        text += f" A page of step {recorded[0]} to play with, five switches and every token:\n\n```\n{play}\n```\n\n"
    if any(line.startswith("study.arm=") for line in run.overrides):
        found = command("report", str(run.folder.parent.parent))
        return f"{text} This run is one of the study {run.study}, which says:\n\n```\n{found}\n```"
    kept = [line for line in run.overrides if line and not line.lstrip("+~").startswith(OWN)]
    pairs = pairs_needed(len(REGISTER))
    study = command("train", "-m", *kept, "+study=leave_one_out", f"seed=range(0,{pairs})")
    return (
        f"{text} To train {pairs} pairs of runs for each technique, with and without it, the fewest that can decide "
        f"{len(REGISTER)} comparisons:\n\n```\n{study}\n```"
    )


def _course(run: Run, keys: list[str]) -> Table:
    rows = [
        [in_words(key), amount(key, series.iloc[0]), amount(key, series.iloc[-1]), "%" if is_share(key) else unit(key)]
        for key in dict.fromkeys(keys)
        if len(series := run.series(key))
    ]
    return Table("course", "The first and the last value that was logged.", ["metric", "first", "last", ""], rows)
