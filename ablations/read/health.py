"""Checks of a run: faults, switches without effect, techniques that have something to act on."""

import numpy as np
import pandas as pd

from ablations.read.runs import Run, Runs
from ablations.trainer import flatten

TRUNCATED_LIMIT = 0.15


def ends(run: Run, key: str) -> tuple[float, float] | None:
    """Means of the first and last tenth of a metric's logged steps; None below two, or if one was NaN or infinite."""
    steps, values = run.points(key)
    values = values[steps > 0]
    if len(values) < 2 or run.has_nonfinite(key):
        return None
    tenth = max(1, len(values) // 10)
    return float(values[:tenth].mean()), float(values[-tenth:].mean())


def findings(run: Run) -> list[str]:
    """Everything about a run that a reader of its results should know, in words; empty for a healthy run."""
    found = [*run.faults, *_at_the_ends(run)]
    _, empty = run.points("sampling/empty_steps")
    if len(empty) and empty.max() > 0:
        found.append(f"{int(empty.max())} steps without any mixed group (no update)")
    found += _gradient(run)
    for kind in ("error", "timeout"):
        _, share = run.points(f"reward/verifier_{kind}_frac")
        if len(share) and share.max() > 0.01:
            found.append(f"verifier {kind}s: up to {share.max():.1%} of the completions of a step")
    if not run.usable and run.status != "running":
        found.append(f"ended as {run.status}")
    return found + idle_switches(run)


def _at_the_ends(run: Run) -> list[str]:
    """Symptoms in the first and the last tenth of the steps."""
    found = []
    if pair := ends(run, "rollout/entropy"):
        start, end = pair
        if end < 0.1 * start and end < 0.05:
            found.append(f"entropy collapsed: {start:.3f} to {end:.4f} nats")
        elif end > 2 * start and end > 0.1:
            found.append(f"entropy too high: it rose from {start:.3f} to {end:.3f} nats")
    if (pair := ends(run, "rollout/truncated_frac")) and pair[1] > TRUNCATED_LIMIT:
        found.append(f"{pair[1]:.0%} of completions truncated at the end (limit {TRUNCATED_LIMIT:.0%})")
    if (pair := ends(run, "rollout/groups_mixed_frac")) and pair[1] < 0.02:
        found.append(f"no mixed groups left to learn from: {pair[1]:.1%} at the end")
    return found


def learned(run: Run) -> bool:
    """True if some update had a gradient, and where norms were not logged."""
    return "optim/grad_norm" not in run.metrics or bool((run.points("optim/grad_norm")[1] > 0).any())


def _gradient(run: Run) -> list[str]:
    if not learned(run):
        return ["nothing was learned: no update had a gradient"]
    steps, norm = run.points("optim/grad_norm")
    steps, norm = steps[norm > 0], norm[norm > 0]
    spikes = steps[norm > 10 * np.median(norm)] if len(norm) >= 10 else steps[:0]
    if len(spikes):
        return [f"gradient spikes: norm above 10 times its median at {len(spikes)} steps, first {spikes[0]}"]
    return []


def idle_switches(run: Run) -> list[str]:
    """Switches that were on and had no effect: by the run's settings, or because they never acted."""
    settings = flatten(run.config.get("algorithm") or {})
    found = []
    for switch, technique in run.on.items():
        given = [idle(settings.get) for idle in technique.idle]
        given.append(technique.without_argument(settings, run.record.get("loss_arguments")))
        reasons = [reason for reason in given if reason]
        if technique.never_acted:
            key, words = technique.never_acted
            _, values = run.points(key)
            reasons += [words] if len(values) and (values == 0).all() else []
        found += [f"{switch} is on but had no effect: {reason}" for reason in reasons[:1]]
    return found


def exercised(runs: Runs) -> dict[str, tuple[bool | None, str]]:
    """True where a technique has something to act on, averaged over the runs without it, with the number in words.

    None where that is unknown: the metric was not logged, or no run is without the technique.
    """
    table: dict[str, tuple[bool | None, str]] = {}
    for switch, technique in runs.records.items():
        condition = technique.condition
        without = [run for run in runs.usable if run.techniques and switch not in run.on]
        curves = [run.series(condition.metric).loc[1:] for run in without]
        means = [series.mean() for series in curves if len(series)]
        if means:
            table[switch] = condition.measured(float(pd.Series(means).mean()))
        else:
            reason = f"{condition.metric} not logged" if without else "no run is without it"
            table[switch] = (None, f"{condition.words}: {reason}")
    return table
