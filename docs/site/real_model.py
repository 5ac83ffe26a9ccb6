"""Dynamic sampling on SmolLM2 (experiments/sampling_smollm2): each arm along its tokens, and both at equal steps."""

from collections.abc import Callable
from functools import partial

import numpy as np
from cells import cells, points

from ablations.compare.statistics import t_interval
from ablations.read.curves import measured
from ablations.read.outcomes import primary_metric
from ablations.read.run import Run

STUDY = "sampling_smollm2"
ARMS = {"with": "dapo", "without": "dapo-dynamic_sampling"}
"""Dynamic sampling -> the arm."""
PLACES = ("before training", "8,000 tokens", "the end")
"""Where a run is evaluated."""


def along() -> str:
    """Markdown: means over the runs of an arm, where they are evaluated."""
    heads = ["dynamic sampling", "at", "held-out accuracy, %", "tokens", "steps", "cut off in that step, %"]
    lines = [f"| {' | '.join(heads)} |", "|---|---" + "|---:" * (len(heads) - 2) + "|"]
    for words, arm in ARMS.items():
        for number, place in enumerate(PLACES):
            accuracy, tokens, steps = np.mean([_evaluated(run)[number] for run in cells(STUDY).of(arm)], axis=0)
            cut = "" if number == 0 else f"{100 * _cut_off(arm, number):.1f}"
            lines.append(f"| {words} | {place} | {100 * accuracy:.1f} | {tokens:,.0f} | {steps:.1f} | {cut} |")
    return "\n".join(lines)


def at_equal_steps() -> str:
    """The end with dynamic sampling minus 8,000 tokens without it, over the seeds."""
    ends = {run.seed: _evaluated(run)[2][0] for run in cells(STUDY).of(ARMS["with"])}
    midway = {run.seed: _evaluated(run)[1][0] for run in cells(STUDY).of(ARMS["without"])}
    return points(t_interval(np.array([ends[seed] - midway[seed] for seed in sorted({*ends} & {*midway})])))


def learned(words: str) -> str:
    """The end of an arm minus its beginning, over the seeds."""
    found = [_evaluated(run) for run in cells(STUDY).of(ARMS[words])]
    return points(t_interval(np.array([end[0] - start[0] for start, _, end in found])))


def _evaluated(run: Run) -> list[tuple[float, float, float]]:
    """(held-out accuracy, tokens, steps) of a run at PLACES."""
    found = measured(run, primary_metric(cells(STUDY)), "tokens_generated")
    rows = [*zip(found.values, found.places, found.steps, strict=True)]
    if len(rows) != len(PLACES):
        raise SystemExit(f"{run.arm}, seed {run.seed}: {len(rows)} evaluations instead of {len(PLACES)}")
    return rows


def _cut_off(arm: str, number: int) -> float:
    """The share of answers that the limit cuts off in the step before the evaluation, mean over an arm's runs."""
    runs = cells(STUDY).of(arm)
    return float(np.mean([run.series("rollout/truncated_frac")[_evaluated(run)[number][2]] for run in runs]))


NAMED: dict[str, Callable[[], str]] = {
    "smollm2_at_equal_steps": at_equal_steps,
    **{f"smollm2_learned_{words}": partial(learned, words) for words in ARMS},
}
"""Name of a number in a sentence -> what makes its text."""
