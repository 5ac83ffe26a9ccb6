"""Curves: one run at a glance (`plot_run`), a metric of every arm with seeds and intervals (`plot_metric`), and the
curves of a report."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from dapo_lit.study.figures.drawing import Drawing, save
from dapo_lit.study.figures.style import (
    INK,
    MARKERS,
    Look,
    draw_band,
    legend,
    looks,
    new_figure,
    numbered,
    short,
    title,
)
from dapo_lit.study.read.curves import AXES, band, curve
from dapo_lit.study.read.outcomes import amount, in_words, is_share, unit
from dapo_lit.study.read.runs import Run, Runs, StudyError, read_run

PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Entropy", "nats a token", (("rollout/entropy", "all generated"), ("policy/entropy", "trained on"))),
    ("Length", "tokens", (("rollout/length_correct", "correct"), ("rollout/length_wrong", "wrong"))),
    ("Accuracy", "share correct", (("rollout/accuracy", "training"),)),
    (
        "Groups",
        "share of groups",
        (
            ("rollout/groups_mixed_frac", "mixed"),
            ("rollout/groups_all_correct_frac", "all correct"),
            ("rollout/groups_all_wrong_frac", "all wrong"),
        ),
    ),
)
CURVES = ("rollout/accuracy", "rollout/reward", "rollout/length_mean", "rollout/entropy", "rollout/groups_mixed_frac")
"""Panels of a report's curves, after the primary metric."""
MOST_BANDS, MOST_LINES = 4, 8
"""With more arms in a panel, no bands and no seeds are drawn: they would hide each other and the means. A report draws
at most eight arms."""


def plot_run(folder: Path) -> Path:
    """Draws one run, finished or not, into its folder as figures/run.png and returns that path.

    Four panels by rollout step: entropy, length, accuracy with the evaluations, and the shares of groups.

    Raises:
        StudyError: the folder holds no readable run, or no step was logged yet.
    """
    run = read_run(Path(folder))
    if run.metrics.empty:
        raise StudyError(f"{folder}: no step was logged, there is nothing to draw")
    figure, grid = new_figure(2, 2, height=4.9)
    steps = int(run.metrics.index.max())
    window = max(1, steps // 10)
    for axes, (name, measured_in, keys) in zip(grid.flat, PANELS, strict=True):
        for place, (key, label) in enumerate(keys):
            _single(axes, run.series(key), label, numbered(place), window)
        if name == "Accuracy":
            _evaluations(axes, run, len(keys))
        title(axes, name, measured_in, AXES["step"])
        if not axes.lines:
            axes.text(0.5, 0.5, "not logged", ha="center", transform=axes.transAxes)
            continue
        axes.set_ylim(*((-0.03, 1.03) if "share" in measured_in else (0, None)))
        axes.legend(fontsize=7.5, frameon=False)
    smoothing = f"bold: mean of {window} steps, faint: each step" if window > 1 else "each step, not smoothed"
    heading = f"{run.study} / {run.arm} / seed {run.seed}: {steps} steps, {run.status} ({smoothing})"
    figure.suptitle(heading, x=0.01, ha="left", fontsize=8.5)
    return save(figure, Path(folder) / "figures" / "run")[0]


def _single(axes: Axes, series: pd.Series, label: str, look: Look, window: int) -> None:
    """One metric of one run: raw values faint, their moving mean on top."""
    if series.empty:
        return
    smooth = series.rolling(window, center=True, min_periods=1).mean()
    if window > 1:
        axes.plot(series.index, series, color=look.colour, alpha=0.35, lw=0.8)
    axes.plot(smooth.index, smooth, **look.line, ms=3, markevery=0.2, label=label)


def _evaluations(axes: Axes, run: Run, place: int) -> None:
    """Points of every avg@k that was evaluated."""
    for key in (str(k) for k in run.metrics if str(k).startswith("eval/") and "/avg@" in str(k)):
        series = run.series(key)
        if not series.empty:
            benchmark, measure = key.removeprefix("eval/").rsplit("/", 1)
            label, marker = f"{measure} {benchmark}", MARKERS[place % 6]
            axes.plot(series.index, series, color=INK, ls=":", lw=0.8, marker=marker, ms=4.5, label=label)
            place += 1


def plot_metric(runs: Runs, key: str, x: str = "step", smooth: int = 1) -> Figure:
    """A metric of every arm: a thin line per seed, the mean of the seeds and, up to four arms, its 95 % t-band.

    Args:
        x: one of the five axes; where it is not `step`, seeds are interpolated to common values, never extrapolated.
        smooth: rows of a centred moving mean, applied to every seed alike and named in the title.

    Raises:
        StudyError: no usable run logged the metric, or the axis is unknown.
    """
    arms = [arm for arm in runs.arms if any(len(run.series(key)) for run in runs.of(arm) if run.usable)]
    if not arms:
        raise StudyError(f"no usable run logged {key}; logged: {', '.join(runs.keys())}")
    look = looks(arms)
    figure, grid = new_figure(width=5.6, height=3.1)
    _draw_metric(grid[0, 0], runs, key, x, arms, look, smooth)
    legend(figure, {short(arm): look[arm] for arm in arms})
    smoothing = f", moving mean of {smooth}" if smooth > 1 else ""
    several = any(sum(run.usable for run in runs.of(arm)) > 1 for arm in arms)
    band_text = "; band: 95 % t-interval" if several and len(arms) <= MOST_BANDS else ""
    title(grid[0, 0], f"{in_words(key)} ({seeds_text(runs, arms)}{band_text}{smoothing})", _unit(key), AXES[x])
    return figure


def _unit(key: str) -> str:
    return "share" if is_share(key) else unit(key)


def _draw_metric(
    axes: Axes,
    runs: Runs,
    key: str,
    x: str,
    arms: Sequence[str],
    look: Mapping[str, Look],
    smooth: int = 1,
    shaded: bool = True,
) -> dict[str, float]:
    """Draws the arms in one panel; returns where the mean of each ends.

    Args:
        shaded: shade the interval of each mean. It is mostly the spread of base policies, which arms share.
    """
    ends, heights, few = {}, [np.empty(0)], len(arms) <= MOST_BANDS
    for arm in arms:
        seeds = [series for run in runs.of(arm) if run.usable and len(series := curve(run, key, x, smooth))]
        if not seeds:
            continue
        points = [np.column_stack([series.index, series]).astype(float) for series in seeds]
        if few and len(seeds) > 1:
            axes.add_collection(LineCollection(points, colors=look[arm].colour, alpha=0.35, linewidths=0.6))
        table = band(seeds)
        heights += [*(seed[:, 1] for seed in points if few), table["mean"].to_numpy()]
        if table.empty:  # the seeds have no range in common over which to average them
            continue
        if shaded and few:
            draw_band(axes, table["x"], table["low"], table["high"], look[arm].colour)
        axes.plot(table["x"], table["mean"], **look[arm].line, ms=3.5, lw=1.6, markevery=max(1, len(table) // 6))
        ends[arm] = float(table["mean"].iloc[-1])
    seen = np.concatenate(heights)
    if len(seen) and seen.max() > seen.min():
        # Seeds and means set the range: the t-band of two seeds reaches far beyond all that was seen.
        margin = 0.15 * (seen.max() - seen.min())
        axes.set_ylim(seen.min() - margin, seen.max() + margin)
    return ends


def curve_figures(runs: Runs, metric: str, axes: Sequence[str]) -> list[Drawing]:
    """The course of training of every arm, a figure for each axis; all but the first are folded."""
    usable = runs.usable
    every = [*(arm for arm in ("dapo", "naive_grpo") if arm in usable.arms), *usable.arms]
    arms = [arm for arm in usable.arms if arm in list(dict.fromkeys(every))[:MOST_LINES]]
    keys = [key for key in dict.fromkeys([metric, *CURVES]) if any(len(run.series(key)) for run in usable)]
    look, smooth = looks(arms), max(1, int(max(run.metrics.index.max() for run in usable)) // 20)
    drawings: list[Drawing] = []
    for axis in axes:
        figure, grid = new_figure(-(-len(keys) // 2), min(2, len(keys)))
        parts = []
        for panel, key in zip(grid.flat, keys, strict=False):
            window = 1 if key.startswith("eval/") else smooth
            ends = _draw_metric(panel, usable, key, axis, arms, look, window, shaded=False)
            title(panel, in_words(key), _unit(key), AXES[axis])
            parts += [f"{key} at the end: {', '.join(f'{arm} {amount(key, end)}' for arm, end in ends.items())}"]
        for panel in list(grid.flat)[len(keys) :]:
            panel.remove()
        legend(figure, {short(arm): look[arm] for arm in arms})
        smoothing = f"training metrics as a moving mean of {smooth} steps" if smooth > 1 else "not smoothed"
        seeds = ", a thin line each" if len(arms) <= MOST_BANDS else ""
        caption = f"{seeds_text(usable, arms)}{seeds}, by {AXES[axis]}; bold: mean; {smoothing}."
        if len(arms) < len(usable.arms):
            caption += f" {len(arms)} of {len(usable.arms)} arms; the tables have all."
        folded = f"By {AXES[axis]}" if drawings else ""
        drawings.append(Drawing(f"curves_{axis}", caption, ". ".join(parts) + ".", figure, folded))
    return drawings


def seeds_text(runs: Runs, arms: Sequence[str]) -> str:
    """`5 seeds per arm`, or the range where arms differ."""
    counts = np.unique([sum(run.usable for run in runs.of(arm)) for arm in arms])
    if len(counts) == 1:
        return f"{counts[0]} seed{'' if counts[0] == 1 else 's'} per arm"
    return f"{counts[0]} to {counts[-1]} seeds per arm"
