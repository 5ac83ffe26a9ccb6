"""Whether a run can be trusted: what went wrong in it, which switches had no effect, and what its regime exercises."""

from collections.abc import Callable, Sequence

import pandas as pd

from dapo_lit.study.read.runs import Run, Runs

TRUNCATED_LIMIT = 0.15


def ends(run: Run, key: str) -> tuple[float, float] | None:
    """Means of the first and last tenth of a metric's logged steps; None below two, or if one was NaN or infinite."""
    series = run.series(key)
    series = series[series.index > 0]
    if len(series) < 2 or run.spoilt(key):
        return None
    tenth = max(1, len(series) // 10)
    return float(series.iloc[:tenth].mean()), float(series.iloc[-tenth:].mean())


def findings(run: Run) -> list[str]:
    """Everything about a run that a reader of its results should know, in words; empty for a healthy run."""
    found = list(run.faults)
    for check in (_entropy, _truncation, _groups, _gradient, _length_against_evaluation, _verifier, _updates):
        found += check(run)
    return found + idle_switches(run)


def _entropy(run: Run) -> list[str]:
    pair = ends(run, "rollout/entropy")
    if pair is None:
        return []
    start, end = pair
    if end < 0.1 * start and end < 0.05:
        return [f"entropy collapsed: {start:.3f} to {end:.4f} nats"]
    if end > 2 * start and end > 0.1:
        return [f"entropy too high: it rose from {start:.3f} to {end:.3f} nats"]
    return []


def _truncation(run: Run) -> list[str]:
    pair = ends(run, "rollout/truncated_frac")
    if pair and pair[1] > TRUNCATED_LIMIT:
        return [f"{pair[1]:.0%} of completions truncated at the end (limit {TRUNCATED_LIMIT:.0%})"]
    return []


def _groups(run: Run) -> list[str]:
    found = []
    pair = ends(run, "rollout/groups_mixed_frac")
    if pair and pair[1] < 0.02:
        found.append(f"no mixed groups left to learn from: {pair[1]:.1%} at the end")
    empty = run.series("sampling/empty_steps")
    if len(empty) and empty.max() > 0:
        found.append(f"{int(empty.max())} steps without any mixed group (no update)")
    return found


def _gradient(run: Run) -> list[str]:
    norm = run.series("optim/grad_norm")
    norm = norm[norm > 0]
    spikes = norm[norm > 10 * norm.median()] if len(norm) >= 10 else norm[:0]
    if len(spikes):
        return [f"gradient spikes: norm above 10 times its median at {len(spikes)} steps, first {spikes.index[0]}"]
    return []


def _length_against_evaluation(run: Run) -> list[str]:
    """Over the second half: length grows by a tenth or more while the evaluation falls by 3 points or more."""
    length = run.series("rollout/length_mean")
    for key in (str(k) for k in run.metrics if str(k).startswith("eval/") and "/avg@" in str(k)):
        evaluation = run.series(key)
        if len(evaluation) < 3 or len(length) < 4:
            continue
        middle = evaluation.index[len(evaluation) // 2]
        fall = evaluation.loc[middle] - evaluation.iloc[-1]
        before, after = length.loc[:middle], length.iloc[-max(1, len(length) // 10) :]
        growth = after.mean() / before.iloc[-max(1, len(length) // 10) :].mean() - 1 if len(before) else 0.0
        if fall >= 0.03 and growth >= 0.1:
            return [f"length up {growth:.0%} while {key} fell {100 * fall:.1f} points after step {middle}"]
    return []


def _verifier(run: Run) -> list[str]:
    found = []
    for kind in ("error", "timeout"):
        share = run.series(f"reward/verifier_{kind}_frac")
        if len(share) and share.max() > 0.01:
            found.append(f"verifier {kind}s: up to {share.max():.1%} of the completions of a step")
    return found


def _updates(run: Run) -> list[str]:
    return [] if run.usable or run.status == "running" else [f"ended as {run.status}"]


def idle_switches(run: Run) -> list[str]:
    """Switches that were on and never acted: a penalty that never fires, a filter that never drops."""
    signs: tuple[tuple[str, str, Callable[[pd.Series], bool], str], ...] = (
        (
            "soft_overlong_punishment",
            "reward/length_penalty",
            lambda s: bool((s == 0).all()),
            "the penalty never fired",
        ),
        (
            "dynamic_sampling",
            "sampling/tokens_filtered_frac",
            lambda s: bool((s == 0).all()),
            "it never dropped a group",
        ),
        ("overlong_filtering", "rollout/truncated_frac", lambda s: bool((s == 0).all()), "nothing was truncated"),
        ("clip_higher", "rollout/accuracy", lambda s: _same_bounds(run), "clip.high equals clip.low"),
    )
    on = run.techniques
    return [
        f"{technique} is on but had no effect: {reason}"
        for technique, key, idle, reason in signs
        if on.get(technique) and len(run.series(key)) and idle(run.series(key))
    ]


def _same_bounds(run: Run) -> bool:
    clip = (run.config.get("algorithm") or {}).get("clip") or {}
    return "low" in clip and clip.get("low") == clip.get("high")


EXERCISED: tuple[tuple[str, str, str, float], ...] = (
    ("clip_higher", "clip/high_frac", "tokens clipped at 1 + clip.low while clip-higher is off", 0.005),
    ("soft_overlong_punishment", "rollout/truncated_frac", "completions truncated", 0.05),
    ("overlong_filtering", "rollout/truncated_frac", "completions truncated", 0.05),
    ("dynamic_sampling", "rollout/groups_mixed_frac", "groups not mixed", 0.10),
    ("token_level_loss", "rollout/length_cv", "coefficient of variation of length", 0.5),
)
"""Technique, metric, what it counts, and how much of it a regime needs before the technique can act at all."""


def exercised(runs: Runs, arms: Sequence[str] = ()) -> dict[str, tuple[bool | None, str]]:
    """For each technique whether the regime lets it act, averaged over runs without it, with the number in words.

    None where it cannot be told: the metric was not logged, or no run is without the technique.
    """
    table: dict[str, tuple[bool | None, str]] = {}
    for technique, key, words, least in EXERCISED:
        without = [run for run in runs.usable if not run.techniques.get(technique, True)]
        means = [series.mean() for run in without if len(series := run.series(key)[lambda s: s.index > 0])]
        if not means:
            reason = f"{key} not logged" if without else "no run is without it"
            table[technique] = (None, f"{words}: {reason}")
            continue
        mean = float(pd.Series(means).mean())
        mean = 1 - mean if key == "rollout/groups_mixed_frac" else mean
        text = f"{words}: {mean:.2f}" if key.endswith("_cv") else f"{words}: {mean:.1%}"
        table[technique] = (
            mean >= least,
            f"{text} (needs {least:g})" if key.endswith("_cv") else f"{text} (needs {least:.1%})",
        )
    return table
