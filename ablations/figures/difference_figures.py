"""The figure of a report's first page: with minus without each technique over the steps, a panel for each metric.

Techniques differ in colour, dash and marker, so that it reads in grey.
"""

import functools
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ablations.border import is_share
from ablations.compare.contrasts import Contrast, contrasts, primary_family
from ablations.compare.statistics import per_base
from ablations.figures.style import (
    FAINT,
    INK,
    Drawing,
    Look,
    contrast_looks,
    contrast_name,
    draw_band,
    legend,
    new_figure,
    with_caption,
)
from ablations.read.curves import band as mean_band
from ablations.read.curves import curve
from ablations.read.outcomes import bases, in_words, unit, with_interval
from ablations.read.runs import Runs, StudyError

MOST_LINES = 6
COLUMNS = 3
"""Panels in a row."""
TEXT = 7
"""Points."""
Bands = dict[str, dict[str, pd.DataFrame]]
"""Metric -> label of a comparison -> its band."""
Curve = tuple[np.ndarray, np.ndarray]
"""Steps and values, both [points]."""


def paired_differences(runs: Runs, contrast: Contrast, key: str, smooth: int = 1) -> pd.DataFrame:
    """A comparison's value at every step that all its runs of a seed logged [steps, seeds]; empty without a pair.

    smooth: rows of a centred moving mean, taken over each run before the difference.
    """
    return _paired(_curves(runs, key, smooth), contrast)


def _curves(runs: Runs, key: str, smooth: int) -> dict[tuple[str, int], Curve]:
    """The smoothed metric of every usable run that logged it, by arm and seed."""
    cells = {(run.arm, run.seed): run for run in runs if run.usable and not run.has_nonfinite(key)}
    found = {cell: curve(run, key, "step", smooth) for cell, run in cells.items()}
    return {cell: (series.index.to_numpy(), series.to_numpy()) for cell, series in found.items() if len(series)}


def _paired(curves: Mapping[tuple[str, int], Curve], contrast: Contrast) -> pd.DataFrame:
    """`paired_differences` of curves, which the comparisons of a study share."""
    columns: dict[int, pd.Series] = {}
    for seed in sorted({seed for _, seed in curves}):
        parts = [(weight, curves.get((arm, seed))) for arm, weight in contrast.weights.items()]
        own = [(weight, part) for weight, part in parts if part]
        if len(own) < len(parts):
            continue
        steps = functools.reduce(_shared, [steps for _, (steps, _) in own])
        if len(steps):
            values = [weight * values[np.searchsorted(at, steps)] for weight, (at, values) in own]
            columns[seed] = pd.Series(np.sum(values, axis=0), index=steps)
    return pd.DataFrame(columns)


def _shared(steps: np.ndarray, others: np.ndarray) -> np.ndarray:
    return steps if np.array_equal(steps, others) else np.intersect1d(steps, others)


def difference_band(differences: pd.DataFrame, base_of: Mapping[int, str] | None = None) -> pd.DataFrame:
    """Mean difference over bases at each step with its pointwise 95 % t-interval: columns x, mean, low, high, n.

    Steps that some pair lacks are left out.
    """
    whole = differences.dropna()
    if whole.empty:
        return pd.DataFrame({name: [] for name in ("x", "mean", "low", "high", "n")}, dtype=float)
    bases = [(base_of or {}).get(int(seed), str(seed)) for seed in whole.columns]
    values = per_base(whole.to_numpy(dtype=float).T, bases)
    return mean_band([pd.Series(value, index=whole.index) for value in values])


def differences_figure(runs: Runs, found: Sequence[Contrast], keys: Sequence[str]) -> Drawing | None:
    """The paired difference of each comparison in each metric over the steps; None where no seed has a pair.

    found: at most six are drawn.
    keys: the metrics, a panel each.
    """
    usable, base_of, lines = runs.usable, bases(runs), found[:MOST_LINES]
    window = max(1, int(max((run.metrics.index.max() for run in usable), default=0)) // 10)
    bands: Bands = {}
    for key in keys:
        curves = _curves(usable, key, 1 if key.startswith("eval/") else window)
        for contrast in lines:
            band = difference_band(_paired(curves, contrast), base_of)
            if len(band := band[band["x"] > 0]):
                bands.setdefault(key, {})[contrast.label] = band
    if not bands:
        return None
    lines = [c for c in lines if any(c.label in panel for panel in bands.values())]
    counts = sorted({int(band["n"].iloc[-1]) for panel in bands.values() for band in panel.values()})
    units = "base policies" if len(set(base_of.values())) > 1 else "runs of one base policy"
    caption = (
        f"With minus without, paired by seed, by rollout step (n = {', '.join(map(str, counts))} {units}): mean and "
        "95 % t-interval, not adjusted and cut where it leaves the panel; above 0, more with it. Shares in points"
    )
    caption += f"; training metrics as a moving mean of {window} steps." if window > 1 else "."
    if len(found) > len(lines):
        caption += f" {len(lines)} of {len(found)} comparisons; the tables have all."
    return Drawing("differences", caption, _in_words(bands), _draw(bands, lines))


def plot_differences(runs: Runs, keys: Sequence[str], reference: str | None = None) -> Figure:
    """`differences_figure` of every technique that these runs compare, with its caption, for notebooks."""
    known = [contrast for contrast in contrasts(runs.usable.arms, reference) if contrast.technique]
    family = primary_family(known)
    drawing = differences_figure(runs, [c for c in known if c.family == family], keys)
    if drawing is None:
        raise StudyError(f"no pair of arms that differ in one technique, of {', '.join(runs.arms)}")
    return with_caption(drawing.figure, drawing.caption)


def _draw(bands: Bands, lines: Sequence[Contrast]) -> Figure:
    columns = min(COLUMNS, len(bands))
    rows = -(-len(bands) // columns)
    figure, grid = new_figure(rows, columns, height=1.7 * rows)
    look = contrast_looks(lines)
    for place, (axes, (key, panel)) in enumerate(zip(grid.flat, bands.items(), strict=False)):
        _panel(axes, panel, look, 100 if is_share(key) else 1)
        text = in_words(key) + (f" ({unit(key)})" if unit(key) else "")
        axes.set_title("\n".join(textwrap.wrap(text, 34)[:2]), loc="left", fontsize=TEXT, color=INK, linespacing=1.0)
        if place >= len(bands) - columns:
            axes.set_xlabel("rollout step", fontsize=TEXT)
    for axes in grid.flat[len(bands) :]:
        axes.remove()
    legend(figure, {contrast_name(c): look[c.label] for c in lines}, fontsize=TEXT)
    return figure


def _panel(axes: Axes, bands: Mapping[str, pd.DataFrame], look: Mapping[str, Look], scale: float) -> None:
    axes.axhline(0, color=FAINT, lw=0.8, zorder=1)
    for label, band in bands.items():
        every = max(1, len(band) // 5)
        axes.plot(band["x"], scale * band["mean"], **look[label].line, ms=2.6, lw=1.2, markevery=every)
        if len(band) == 1:  # no course: the interval of the one point
            axes.vlines(band["x"], scale * band["low"], scale * band["high"], color=look[label].colour, lw=1.2)
        draw_band(axes, band["x"], scale * band["low"], scale * band["high"], look[label].colour)
    table = scale * pd.concat([band[["mean", "low", "high"]] for band in bands.values()])
    # zero, all means, and most of the intervals: the t-interval of two pairs reaches far beyond all that was seen
    low = np.nanmin([0.0, table["mean"].min(), table["low"].quantile(0.25)])
    high = np.nanmax([0.0, table["mean"].max(), table["high"].quantile(0.75)])
    margin = 0.08 * ((high - low) or 1.0)
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlim(left=0)
    axes.tick_params(labelsize=TEXT, pad=2, length=2)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def _in_words(bands: Bands) -> str:
    """The last difference of every line as text."""
    parts = []
    for key, panel in bands.items():
        for label, band in panel.items():
            ends = with_interval(key, *map(float, band.iloc[-1][["mean", "low", "high"]]))
            parts.append(f"{label}, {in_words(key)}: {ends}")
    return "At the last step: " + "; ".join(parts) + "."
