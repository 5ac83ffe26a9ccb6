"""Curves: one run at a glance (`plot_run`), or a metric of every arm with seeds and intervals (`plot_metric`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from dapo_lit.study.figures.drawing import save
from dapo_lit.study.figures.style import (
    DASHES,
    INK,
    MARKERS,
    PETROFF6,
    End,
    Key,
    Look,
    draw_band,
    draw_key,
    label_ends,
    line_key,
    looks,
    new_figure,
    text_width,
    title,
)
from dapo_lit.study.read.curves import AXES, band, curve
from dapo_lit.study.read.metric_words import in_words
from dapo_lit.study.read.outcomes import is_share, unit
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

MOST_BANDS = 4
"""With more arms in a panel, no bands and no seeds are drawn: they would hide each other and the means."""


def plot_run(folder: Path) -> Path:
    """Draws one run, finished or not, into its folder as figures/run.png and returns that path.

    Four panels by rollout step: entropy, length, accuracy with the evaluations, and the shares of groups.

    Raises:
        StudyError: the folder holds no readable run, or no step was logged yet.
    """
    run = read_run(Path(folder))
    if run.metrics.empty:
        raise StudyError(f"{folder}: no step was logged, there is nothing to draw")
    return save(_run_figure(run), Path(folder) / "figures" / "run")[0]


def _run_figure(run: Run) -> Figure:
    figure, grid = new_figure(2, 2, height=4.9, labels=1.1, above=0.15)
    steps = int(run.metrics.index.max())
    window = max(1, steps // 10)
    for axes, (name, measured_in, keys) in zip(grid.flat, PANELS, strict=True):
        ends: list[End] = []
        for place, (key, label) in enumerate(keys):
            ends += _single(axes, run.series(key), label, place, window)
        if name == "Accuracy":
            ends += _evaluations(axes, run, len(keys))
        title(axes, name, measured_in, AXES["step"])
        if "share" in measured_in:
            axes.set_ylim(-0.03, 1.03)
        elif axes.lines:
            axes.set_ylim(bottom=0)
        if not axes.lines:
            axes.text(0.5, 0.5, "not logged", ha="center", transform=axes.transAxes)
        label_ends(axes, ends)
    smoothing = f"bold: mean of {window} steps, faint: each step" if window > 1 else "each step, not smoothed"
    heading = f"{run.study} / {run.arm} / seed {run.seed}: {steps} steps, {run.status} ({smoothing})"
    figure.suptitle(heading, x=0.01, y=0.995, ha="left", va="top", fontsize=8.5)
    return figure


def _single(axes: Axes, series: pd.Series, label: str, place: int, window: int) -> list[End]:
    """One metric of one run: raw values faint, their moving mean on top."""
    if series.empty:
        return []
    smooth = series.rolling(window, center=True, min_periods=1).mean()
    colour = PETROFF6[place]
    if window > 1:
        axes.plot(series.index, series, color=colour, alpha=0.35, lw=0.8)
    axes.plot(smooth.index, smooth, color=colour, ls=DASHES[place], marker=MARKERS[place], ms=3, markevery=0.2)
    return [(label, float(smooth.index[-1]), float(smooth.iloc[-1]), colour)]


def _evaluations(axes: Axes, run: Run, place: int) -> list[End]:
    """Points of every avg@k that was evaluated."""
    ends = []
    for key in (str(k) for k in run.metrics if str(k).startswith("eval/") and "/avg@" in str(k)):
        series = run.series(key)
        if series.empty:
            continue
        benchmark, measure = key.removeprefix("eval/").rsplit("/", 1)
        axes.plot(series.index, series, color=INK, ls=":", lw=0.8, marker=MARKERS[place % 6], ms=4.5)
        ends.append((f"{measure} {benchmark}", float(series.index[-1]), float(series.iloc[-1]), INK))
        place += 1
    return ends


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
    names = line_key(arms, look)
    below = names.height
    figure, grid = new_figure(
        width=5.6, height=3.1 + below, labels=text_width(list(names.at_end.values())), below=below
    )
    draw_metric(grid[0, 0], runs, key, x, arms, look, names, smooth)
    draw_key(figure, names)
    smoothing = f", moving mean of {smooth}" if smooth > 1 else ""
    several = any(sum(run.usable for run in runs.of(arm)) > 1 for arm in arms)
    band_text = "; band: 95 % t-interval" if several and len(arms) <= MOST_BANDS else ""
    title(grid[0, 0], f"{in_words(key)} ({seeds_text(runs, arms)}{band_text}{smoothing})", _unit(key), AXES[x])
    return figure


def _unit(key: str) -> str:
    return "share" if is_share(key) else unit(key)


def draw_metric(
    axes: Axes,
    runs: Runs,
    key: str,
    x: str,
    arms: Sequence[str],
    look: Mapping[str, Look],
    names: Key,
    smooth: int = 1,
    shaded: bool = True,
) -> pd.DataFrame:
    """Draws and labels the arms in one panel; returns the drawn means (arm, x, mean, low, high, n).

    Args:
        shaded: shade the interval of each mean. It is mostly the spread of base policies, which arms share.
    """
    tables = [pd.DataFrame(columns=["x", "mean", "low", "high", "n", "arm", "metric", "axis"])]
    ends: list[End] = []
    lowest, highest = np.inf, -np.inf
    for arm in arms:
        seeds = [series for run in runs.of(arm) if run.usable and len(series := curve(run, key, x, smooth))]
        if not seeds:
            continue
        style = look[arm]
        points = [np.column_stack([series.index, series]).astype(float) for series in seeds]
        drawn = points if len(arms) <= MOST_BANDS else []
        if len(seeds) > 1 and drawn:
            axes.add_collection(LineCollection(points, colors=style.colour, alpha=0.35, linewidths=0.6))
        table = band(seeds)
        heights = np.concatenate([*(seed[:, 1] for seed in drawn), table["mean"].to_numpy()])
        if len(heights):
            lowest, highest = min(lowest, heights.min()), max(highest, heights.max())
        if table.empty:  # the seeds have no range in common over which to average them
            continue
        if shaded and len(arms) <= MOST_BANDS:
            draw_band(axes, table["x"], table["low"], table["high"], style.colour)
        line: dict[str, Any] = {"color": style.colour, "ls": style.dash, "marker": style.marker}
        axes.plot(table["x"], table["mean"], **line, ms=3.5, lw=1.6, markevery=max(1, len(table) // 6))
        ends.append((names.at_end[arm], float(table["x"].iloc[-1]), float(table["mean"].iloc[-1]), style.colour))
        tables.append(table.assign(arm=arm, metric=key, axis=x))
    if highest > lowest:
        # Seeds and means set the range: the t-band of two seeds reaches far beyond all that was seen.
        margin = 0.15 * (highest - lowest)
        axes.set_ylim(lowest - margin, highest + margin)
    label_ends(axes, ends)
    return pd.concat(tables[1:] or tables, ignore_index=True)


def seeds_text(runs: Runs, arms: Sequence[str]) -> str:
    """`5 seeds per arm`, or the range where arms differ."""
    counts = np.unique([sum(run.usable for run in runs.of(arm)) for arm in arms])
    if len(counts) == 1:
        return f"{counts[0]} seed{'' if counts[0] == 1 else 's'} per arm"
    return f"{counts[0]} to {counts[-1]} seeds per arm"
