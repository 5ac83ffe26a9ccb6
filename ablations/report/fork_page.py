"""The result of a fork study: what each switch does to one run from a state on, on the screen and as a page.

A state is compared by itself, over streams of sampling noise; nothing is pooled over the states of a run.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pandas as pd

from ablations.border import is_share
from ablations.compare.contrasts import compare_on
from ablations.compare.effects import registered_effects
from ablations.compare.statistics import Estimate
from ablations.figures.style import contrast_name
from ablations.files.metrics_file import read_metrics
from ablations.files.record import read_config
from ablations.read.guard import refusals
from ablations.read.outcomes import in_words, unit
from ablations.read.registration import last_plan, read_plan
from ablations.read.run import Run
from ablations.read.runs import StudyError, load
from ablations.report.document import Document, Part, Table, in_terminal
from ablations.report.html import write_html

OUTCOMES = {
    "rollout/entropy": "entropy (nats)",
    "rollout/length_mean": "length (tokens)",
    "rollout/truncated_frac": "truncated (points)",
    "rollout/groups_mixed_frac": "mixed groups (points)",
}
"""After training accuracy, which is the registered outcome; generated tokens are the last column."""
WHAT = (
    "A fork does not predict a complete run: this is what a switch changes over the next steps of one policy. In the "
    "four toy settings where that was tested, four steps did not predict the run (docs/calibration.md)."
)
NOT_REPEATED = ("time/", "perf/", "memory/", "eval/")
"""Metrics of the machine, and of evaluations, which a fork does not make."""


def close_fork(folder: Path) -> str:
    """Writes the page of all states of the run next to the folder of this state; returns this state's part as text."""
    states = sorted(other for other in folder.parent.glob("step_*") if any(other.glob("*/seed_*/run.json")))
    if folder not in states:
        raise StudyError(f"{folder}: none of its cells started; each has said why, above or in worker_*.log")
    sections = {state: _section(state) for state in states}
    every = [part for parts in sections.values() for part in parts]
    page = write_html(Document(f"From here on: {folder.parent.name}", [WHAT, *every]), folder.parent / "report.html")
    return "\n".join([*in_terminal([*sections[folder], WHAT]), f"page: {page}"])


def _section(folder: Path) -> list[Part]:
    runs, (plan, _) = load(folder), read_plan(folder)
    done = runs.usable
    if not done.runs or plan is None or plan.reference is None or plan.metric is None:
        raise StudyError(f"{folder}: no cell has finished")
    if reasons := refusals(done, plan.declared):
        raise StudyError("; ".join(reasons))
    fork = done.runs[0].config["fork"]
    first, parent = int(fork["steps"][0]), Path(fork["run"])
    last, rows_of_run = first + int(fork["horizon"]) - 1, read_metrics(parent).table
    if "tokens_generated" not in rows_of_run:
        raise StudyError(f"{parent}: the run that was continued is not there any more; restore it to compare with it")
    before = float(rows_of_run["tokens_generated"].loc[: first - 1].iloc[-1])
    spent = {run: float(run.series("tokens_generated").iloc[-1]) - before for run in done}
    window = plan.families[0].contrasts[0].steps or (first, last)
    rows = []
    for effect in registered_effects(runs, plan, plan.reference, plan.metric):
        if not effect.seeds:  # a switch without a pair has no row
            continue
        cells = [_text(plan.metric, effect.estimate) + (f" {effect.verdict}" if effect.decided else "")]
        cells += [_text(key, compare_on(runs, effect.contrast, key, window).estimate) for key in OUTCOMES]
        # the tokens before the state are the same in both arms
        tokens = compare_on(runs, effect.contrast, "tokens_generated", (last, last)).estimate
        without = [spent[run] for arm, w in effect.contrast.weights.items() if w < 0 for run in done.of(arm)]
        cells.append(_text("tokens_frac", tokens, 1 / fmean(without)) if without else "–")
        rows.append([contrast_name(effect.contrast), str(effect.estimate.n), *cells])
    total = float(rows_of_run["tokens_generated"].iloc[-1])
    notes = [
        f"{len(done)} continuations of {last - first + 1} steps generated {sum(spent.values()):,.0f} tokens, "
        f"{sum(spent.values()) / total:.2g} times what the run has generated so far.",
        _repeats(done.of(plan.reference), parent, rows_of_run.loc[first:last]),
    ]
    registered = last_plan(folder) or plan  # with seeds that were added
    missing = runs.missing(plan.arms, registered.seeds)
    notes += [f"{len(missing)} cells are missing."] if missing else []
    how = (
        f"With minus without, mean of steps {window[0]} to {window[1]} (tokens: of all steps, in % of those without), "
        "with the half-width of a 95 % t-interval over n streams of sampling noise, which the arms share."
    )
    table = Table(
        f"step_{first}",
        "",
        ["switch", "n", f"{in_words(plan.metric)} ({unit(plan.metric)})", *OUTCOMES.values(), "generated tokens (%)"],
        rows,
    )
    return [f"## {parent}, steps {first} to {last}", how, table, " ".join(notes)]


def _repeats(own: Sequence[Run], parent: Path, steps: pd.DataFrame) -> str:
    """Says whether the run's own switches, under its own noise, gave its own steps again."""
    noise = read_config(parent)["rollout"]["noise_stream"]
    again = next((run.metrics for run in own if run.seed == noise), None)
    if again is None:
        return f"The run's own noise is stream {noise}, which is not among these."
    keys = [str(key) for key in steps if key in again]
    compared = [key for key in keys if key != "wall_s" and not key.startswith(NOT_REPEATED)]
    differing = [key for key in compared if not again[key].astype(float).equals(steps[key].astype(float))]
    if differing:
        return f"Under its own switches and noise the run was not repeated exactly: {', '.join(differing[:3])} differ."
    return f"Under its own switches and noise the run was repeated exactly, in all {len(compared)} metrics."


def _text(key: str, estimate: Estimate, scale: float = 1) -> str:
    """`+2.5 ± 0.9`; with both ends where they are not at one distance, as of several looks."""
    if estimate.n == 0:
        return "–"
    factor, form = (100 * scale, ".1f") if is_share(key) else (scale, ".3f" if "entropy" in key else ".2f")
    mean, low, high = factor * estimate.mean, estimate.low, estimate.high
    if low is None or high is None:
        return f"{mean:+{form}}"
    low, high = factor * low, factor * high
    if math.isclose(high - mean, mean - low, rel_tol=1e-6):
        return f"{mean:+{form}} ± {high - mean:{form}}"
    return f"{mean:+{form}} [{low:+{form}}, {high:+{form}}]"
