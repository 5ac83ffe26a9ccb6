"""Curves: a metric of every arm with seeds and intervals (`plot_metric`)."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from ablations.border import is_share
from ablations.figures.style import (
    Look,
    draw_band,
    legend,
    looks,
    new_figure,
    short,
    title,
)
from ablations.read.curves import AXES, band, curve, curves_of_bases
from ablations.read.outcomes import bases, in_words, unit
from ablations.read.runs import Runs, StudyError

MOST_BANDS = 4
"""With more arms no bands and no seeds are drawn: they would hide each other and the means."""


def plot_metric(runs: Runs, key: str, x: str = "step") -> Figure:
    """A metric of every arm: a thin line per seed, the mean and, up to four arms, its 95 % t-band over base policies.

    x: one of the five axes; where it is not `step`, the k-th points of all seeds are averaged.
    """
    logged, runs = runs.keys(), runs.usable
    arms = [arm for arm in runs.arms if any(len(run.series(key)) for run in runs.of(arm))]
    if not arms:
        raise StudyError(f"no usable run logged {key}; logged: {', '.join(logged)}")
    look = looks(arms)
    figure, grid = new_figure(width=5.6, height=3.1)
    _draw_metric(grid[0, 0], runs, key, x, arms, look)
    legend(figure, {short(arm): look[arm] for arm in arms})
    several = any(len(runs.of(arm)) > 1 for arm in arms)
    of_bases = " over base policies" if x == "step" and len(set(bases(runs).values())) > 1 else ""
    band_text = f"; band: 95 % t-interval{of_bases}" if several and len(arms) <= MOST_BANDS else ""
    heading = f"{in_words(key)} ({seeds_text(runs, arms)}{band_text})"
    title(grid[0, 0], heading, "share" if is_share(key) else unit(key), AXES[x])
    return figure


def _draw_metric(axes: Axes, runs: Runs, key: str, x: str, arms: Sequence[str], look: Mapping[str, Look]) -> None:
    heights, few, base_of = [np.empty(0)], len(arms) <= MOST_BANDS, bases(runs)
    for arm in arms:
        drawn = [(run, series) for run in runs.of(arm) if len(series := curve(run, key, x))]
        if not drawn:
            continue
        seeds = [series for _, series in drawn]
        points = [np.column_stack([series.index, series]).astype(float) for series in seeds]
        if few and len(seeds) > 1:
            axes.add_collection(LineCollection(points, colors=look[arm].colour, alpha=0.35, linewidths=0.6))
        # Over steps the unit of the band is the base policy; on another axis the points of its seeds do not meet.
        units = curves_of_bases(seeds, [base_of[run.seed] for run, _ in drawn]) if x == "step" else seeds
        table = band(units)
        heights += [*(seed[:, 1] for seed in points if few), table["mean"].to_numpy()]
        if table.empty:  # the seeds have no range in common over which to average them
            continue
        if few:
            draw_band(axes, table["x"], table["low"], table["high"], look[arm].colour)
        axes.plot(table["x"], table["mean"], **look[arm].line, ms=3.5, lw=1.6, markevery=max(1, len(table) // 6))
    seen = np.concatenate(heights)
    if len(seen) and seen.max() > seen.min():
        # Seeds and means set the range: the t-band of two seeds reaches far beyond all that was seen.
        margin = 0.15 * (seen.max() - seen.min())
        axes.set_ylim(seen.min() - margin, seen.max() + margin)


def seeds_text(runs: Runs, arms: Sequence[str]) -> str:
    """`5 seeds per arm`, or the range where arms differ."""
    counts = np.unique([len(runs.of(arm)) for arm in arms])
    if len(counts) == 1:
        return f"{counts[0]} seed{'' if counts[0] == 1 else 's'} per arm"
    return f"{counts[0]} to {counts[-1]} seeds per arm"
