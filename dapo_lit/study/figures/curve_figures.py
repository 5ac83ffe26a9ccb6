"""Curves: a metric of every arm with seeds and intervals (`plot_metric`), and those of a report or of one run."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from dapo_lit.study.figures.drawing import Drawing
from dapo_lit.study.figures.style import (
    Look,
    draw_band,
    legend,
    looks,
    new_figure,
    short,
    title,
)
from dapo_lit.study.read.curves import AXES, band, curve
from dapo_lit.study.read.outcomes import amount, in_words, is_share, unit
from dapo_lit.study.read.runs import Runs, StudyError

CURVES = ("rollout/accuracy", "rollout/reward", "rollout/length_mean", "rollout/entropy", "rollout/groups_mixed_frac")
"""Panels of a report's curves, after the primary metric."""
MOST_BANDS, MOST_LINES = 4, 8
"""With more arms in a panel, no bands and no seeds are drawn: they would hide each other and the means. A report draws
at most eight arms."""


def plot_metric(runs: Runs, key: str, x: str = "step", smooth: int = 1) -> Figure:
    """A metric of every arm: a thin line per seed, the mean of the seeds and, up to four arms, its 95 % t-band.

    Args:
        x: one of the five axes; where it is not `step`, seeds are interpolated to common values, never extrapolated.
        smooth: rows of a centred moving mean, applied to every seed alike and named in the title.
    """
    logged, runs = runs.keys(), runs.usable
    arms = [arm for arm in runs.arms if any(len(run.series(key)) for run in runs.of(arm))]
    if not arms:
        raise StudyError(f"no usable run logged {key}; logged: {', '.join(logged)}")
    look = looks(arms)
    figure, grid = new_figure(width=5.6, height=3.1)
    _draw_metric(grid[0, 0], runs, key, x, arms, look, smooth)
    legend(figure, {short(arm): look[arm] for arm in arms})
    smoothing = f", moving mean of {smooth}" if smooth > 1 else ""
    several = any(len(runs.of(arm)) > 1 for arm in arms)
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
        seeds = [series for run in runs.of(arm) if len(series := curve(run, key, x, smooth))]
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


def curves_figure(runs: Runs, metric: str) -> Drawing:
    """The course of training of every arm, by rollout step."""
    every = [*(arm for arm in ("dapo", "naive_grpo") if arm in runs.arms), *runs.arms]
    arms = [arm for arm in runs.arms if arm in list(dict.fromkeys(every))[:MOST_LINES]]
    keys = [key for key in dict.fromkeys([metric, *CURVES]) if any(len(run.series(key)) for run in runs)]
    look, smooth = looks(arms), max(1, int(max(run.metrics.index.max() for run in runs)) // 20)
    figure, grid = new_figure(-(-len(keys) // 2), min(2, len(keys)))
    parts = []
    for panel, key in zip(grid.flat, keys, strict=False):
        window = 1 if key.startswith("eval/") else smooth
        ends = _draw_metric(panel, runs, key, "step", arms, look, window, shaded=False)
        title(panel, in_words(key), _unit(key), AXES["step"])
        parts += [f"{key} at the end: {', '.join(f'{arm} {amount(key, end)}' for arm, end in ends.items())}"]
    for panel in list(grid.flat)[len(keys) :]:
        panel.remove()
    legend(figure, {short(arm): look[arm] for arm in arms})
    smoothing = f"training metrics as a moving mean of {smooth} steps" if smooth > 1 else "not smoothed"
    seeds = ", a thin line each" if len(arms) <= MOST_BANDS else ""
    caption = f"{seeds_text(runs, arms)}{seeds}; bold: mean; {smoothing}."
    if len(arms) < len(runs.arms):
        caption += f" {len(arms)} of {len(runs.arms)} arms; the tables have all."
    return Drawing("curves", caption, ". ".join(parts) + ".", figure)


def seeds_text(runs: Runs, arms: Sequence[str]) -> str:
    """`5 seeds per arm`, or the range where arms differ."""
    counts = np.unique([len(runs.of(arm)) for arm in arms])
    if len(counts) == 1:
        return f"{counts[0]} seed{'' if counts[0] == 1 else 's'} per arm"
    return f"{counts[0]} to {counts[-1]} seeds per arm"
