"""The figure of a report's first page: with minus without each technique over the steps, a panel for each metric.

Drawn at the width of a paper's column (80 mm), where its text has 7 points. Techniques differ in colour, dash and
marker, so that it reads in grey.
"""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dapo_lit.study.compare.contrasts import Contrast, contrasts, primary_family
from dapo_lit.study.compare.statistics import per_base
from dapo_lit.study.figures.drawing import Drawing
from dapo_lit.study.figures.style import (
    COLUMN_IN,
    FAINT,
    INK,
    PAGE_IN,
    Look,
    contrast_looks,
    contrast_name,
    draw_band,
    legend,
    new_figure,
    with_caption,
)
from dapo_lit.study.read.curves import band as mean_band
from dapo_lit.study.read.curves import curve
from dapo_lit.study.read.outcomes import bases, in_words, is_share, unit, with_interval
from dapo_lit.study.read.runs import Runs, StudyError


def paired_differences(runs: Runs, contrast: Contrast, key: str, smooth: int = 1) -> pd.DataFrame:
    """A comparison's value at every step that all its runs of a seed logged [steps, seeds]; empty without a pair.

    smooth: rows of a centred moving mean, taken over each run before the difference.
    """
    cells = {(run.arm, run.seed): run for run in runs if run.usable and not run.spoilt(key)}
    columns: dict[int, pd.Series] = {}
    for seed in runs.seeds:
        arms = [(weight, cells.get((arm, seed))) for arm, weight in contrast.weights.items()]
        parts = [weight * curve(run, key, "step", smooth) for weight, run in arms if run]
        if len(parts) == len(arms) and all(len(part) for part in parts):
            table = pd.concat(parts, axis=1, join="inner")
            if len(table):
                columns[seed] = table.sum(axis=1)
    return pd.DataFrame(columns)


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


MOST_LINES, MOST_BANDS, BARS = 6, 2, 5
"""Lines of a panel; with more than two, intervals are bars at five steps instead of bands."""
TEXT = 7
"""Points."""


def differences_figure(
    runs: Runs, found: Sequence[Contrast], keys: Sequence[str], width: float = COLUMN_IN
) -> Drawing | None:
    """The paired difference of each comparison in each metric over the steps; None where no seed has a pair.

    found: at most six are drawn.
    keys: the metrics, a panel each.
    """
    usable, base_of = runs.usable, bases(runs)
    window = max(1, int(max((run.metrics.index.max() for run in usable), default=0)) // 10)
    bands = {}
    for key in keys:
        for contrast in found[:MOST_LINES]:
            smooth = 1 if key.startswith("eval/") else window
            band = difference_band(paired_differences(usable, contrast, key, smooth), base_of)
            band = band[band["x"] > 0]
            if len(band):
                bands[key, contrast.label] = band * [1, *[100 if is_share(key) else 1] * 3, 1]
    shown = [key for key in keys if any(key == k for k, _ in bands)]
    if not shown:
        return None
    lines = [c for c in found[:MOST_LINES] if any(c.label == label for _, label in bands)]
    figure = _draw(bands, shown, lines, width)
    pairs = sorted({int(band["n"].iloc[-1]) for band in bands.values()})
    caption = (
        f"With minus without, paired by seed, by rollout step (n = {', '.join(map(str, pairs))} pairs): mean and "
        f"95 % t-interval, {'bands' if len(lines) <= MOST_BANDS else 'bars'} not adjusted and cut where they leave the "
        f"panel; above 0, more with it. Shares in points"
    )
    caption += f"; training metrics as a moving mean of {window} steps." if window > 1 else "."
    if len(found) > len(lines):
        caption += f" {len(lines)} of {len(found)} comparisons; the tables have all."
    return Drawing("differences", caption, _in_words(bands), figure)


def plot_differences(runs: Runs, keys: Sequence[str], reference: str | None = None) -> Figure:
    """`differences_figure` of every technique that these runs compare, with its caption, for notebooks."""
    known = [contrast for contrast in contrasts(runs.usable.arms, reference) if contrast.technique]
    family = primary_family(known)
    drawing = differences_figure(runs, [c for c in known if c.family == family], keys, PAGE_IN)
    if drawing is None:
        raise StudyError(f"no pair of arms that differ in one technique, of {', '.join(runs.arms)}")
    return with_caption(drawing.figure, drawing.caption)


def _draw(
    bands: Mapping[tuple[str, str], pd.DataFrame], keys: Sequence[str], lines: Sequence[Contrast], width: float
) -> Figure:
    columns = min(int(2 * width / COLUMN_IN), len(keys))
    rows = -(-len(keys) // columns)
    figure, grid = new_figure(rows, columns, width=width, height=0.74 * width * rows / columns)
    look = contrast_looks(lines)
    end = max(float(band["x"].iloc[-1]) for band in bands.values())
    for place, axes in enumerate(grid.flat):
        if place >= len(keys):
            axes.remove()
            continue
        key = keys[place]
        _panel(axes, {c.label: bands[key, c.label] for c in lines if (key, c.label) in bands}, look)
        text = in_words(key) + (f" ({unit(key)})" if unit(key) else "")
        axes.set_title("\n".join(textwrap.wrap(text, 28)[:2]), loc="left", fontsize=TEXT, color=INK, linespacing=1.0)
        axes.set_xlim(0, 1.04 * end)
        if place >= len(keys) - columns:
            axes.set_xlabel("rollout step", fontsize=TEXT)
    legend(figure, {contrast_name(c): look[c.label] for c in lines}, fontsize=TEXT)
    return figure


def _panel(axes: Axes, bands: Mapping[str, pd.DataFrame], look: Mapping[str, Look]) -> None:
    axes.axhline(0, color=FAINT, lw=0.8, zorder=1)
    for place, (label, whole) in enumerate(bands.items()):
        style = look[label]
        apart = 0.015 * float(whole["x"].iloc[-1]) * (place - (len(bands) - 1) / 2)
        band = whole.assign(x=whole["x"] + apart) if len(whole) <= BARS else whole  # else bars have steps of their own
        every = max(1, len(band) // BARS)
        start = (place * every) // max(1, len(bands))
        axes.plot(band["x"], band["mean"], **style.line, ms=2.6, lw=1.2, markevery=(start, every))
        if len(bands) <= MOST_BANDS:
            draw_band(axes, band["x"], band["low"], band["high"], style.colour)
        else:
            bars = band.iloc[start::every]
            axes.vlines(bars["x"], bars["low"], bars["high"], color=style.colour, lw=0.8, alpha=0.8)
    axes.set_ylim(*_limits(bands))
    axes.tick_params(labelsize=TEXT, pad=2, length=2)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def _limits(bands: Mapping[str, pd.DataFrame]) -> tuple[float, float]:
    """All means and zero, and half of the intervals' ends."""
    means = np.concatenate([band["mean"] for band in bands.values()])
    lows, highs = (np.concatenate([band[end] for band in bands.values()]) for end in ("low", "high"))
    lows, highs = lows[np.isfinite(lows)], highs[np.isfinite(highs)]
    low = min(0.0, means.min(), np.quantile(lows, 0.25) if len(lows) else 0.0)
    high = max(0.0, means.max(), np.quantile(highs, 0.75) if len(highs) else 0.0)
    margin = 0.08 * ((high - low) or 1.0)
    return float(low - margin), float(high + margin)


def _in_words(bands: Mapping[tuple[str, str], pd.DataFrame]) -> str:
    """The last difference of every line as text."""
    parts = []
    for (key, label), band in bands.items():
        last = band.iloc[-1] / (100 if is_share(key) else 1)
        parts.append(f"{label}, {in_words(key)}: {with_interval(key, *map(float, last[['mean', 'low', 'high']]))}")
    return "At the last step: " + "; ".join(parts) + "."
