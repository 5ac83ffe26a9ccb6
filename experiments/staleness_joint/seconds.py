"""Each arm's accuracy at equal tokens, and its training accuracy at equal simulated seconds: the page's tables.

Run in the repository: `python experiments/staleness_joint/seconds.py FOLDER`.

Cost model, as registered in conf/study/staleness.yaml: a step's generated tokens at the sampling rate of k = 0, its
trained tokens at the training rate of k = 0 (medians over the rows of its runs). The two times are added at k = 0,
where one phase waits for the other; at k > 0 the step takes the longer of the two.
"""

import sys
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from ablations.compare.equal_budget import needed
from ablations.compare.statistics import Estimate, per_base, t_interval
from ablations.read.curves import TRAINING_ACCURACY, Measured, measured, value_at
from ablations.read.outcomes import primary_metric, scores
from ablations.read.run import Run
from ablations.read.runs import Runs, load

CONTROL = "dapo"


def of_each_step(run: Run, key: str) -> pd.Series:
    """What each step added to a running total."""
    total = run.series(key)
    return total.diff().fillna(total)


def rates(runs: Runs) -> tuple[float, float]:
    """Tokens a second that the control samples and trains."""
    sampled, trained = [], []
    for run in runs.of(CONTROL):
        sampled.extend((of_each_step(run, "tokens_generated") / run.series("time/generate_s")).dropna())
        trained.extend(
            (of_each_step(run, "tokens_trained") / (run.series("time/score_s") + run.series("time/train_s"))).dropna()
        )
    return median(sampled), median(trained)


def in_seconds(run: Run, sampled: float, trained: float) -> Measured:
    """The training accuracy of a run over simulated seconds."""
    phases = of_each_step(run, "tokens_generated") / sampled, of_each_step(run, "tokens_trained") / trained
    spent = (np.maximum(*phases) if "steps_ahead" in run.arm else np.add(*phases)).cumsum()
    curve = measured(run, TRAINING_ACCURACY, "step")
    return Measured(curve.steps, spent.reindex(curve.steps, fill_value=0.0).to_numpy(), curve.values)


def points(estimate: Estimate) -> str:
    ends = "" if estimate.low is None else f" [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"
    return f"{100 * estimate.mean:+.1f}{ends}"


runs = load(Path(sys.argv[1])).usable
accuracy = scores(runs, primary_metric(runs, None))
speeds = rates(runs)
print(f"{speeds[0]:.0f} tokens sampled, {speeds[1]:.0f} trained a second\n")
print(
    "| arm | n | accuracy, % | against k = 0 | simulated s | training acc. at equal s | times the s to k = 0's level |"
)
print("|---|---:|---:|---:|---:|---:|---:|")
controls = {run.seed: run for run in runs.of(CONTROL)}
for arm in runs.arms:
    pairs = [(run, controls[run.seed]) for run in runs.of(arm) if run.seed in controls]
    bases = [run.base for run, _ in pairs]
    curves = [(in_seconds(run, *speeds), in_seconds(control, *speeds)) for run, control in pairs]
    final = t_interval(per_base([accuracy[arm][run.seed] for run, _ in pairs], bases))
    change = t_interval(per_base([accuracy[arm][a.seed] - accuracy[CONTROL][b.seed] for a, b in pairs], bases))
    at_equal = []
    for ours, theirs in curves:
        place = min(ours.places[-1], theirs.places[-1])
        at_equal.append((value_at(ours, place) or np.nan) - (value_at(theirs, place) or np.nan))
    level = needed([[pair] for pair in curves], bases)
    times = (
        ""
        if level is None
        else f"{level.ratio:.2f} [{level.low or 0:.2f}, {level.high or np.inf:.2f}], never {level.never}"
    )
    length = np.mean([ours.places[-1] for ours, _ in curves])
    print(
        f"| {arm} | {len(pairs)} | {100 * final.mean:.1f} | {points(change)} | {length:.0f} | "
        f"{points(t_interval(per_base(at_equal, bases)))} | {times} |"
    )
