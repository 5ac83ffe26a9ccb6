"""Figures of comparisons: the outcome of every run, effects with their intervals, and interactions."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from dapo_lit.study.compare.contrasts import Comparison
from dapo_lit.study.compare.statistics import t_interval
from dapo_lit.study.figures.style import (
    FAINT,
    INK,
    ON_DARK,
    ON_PALE,
    PETROFF6,
    looks,
    new_figure,
    short,
    text_width,
    title,
)
from dapo_lit.study.read.outcomes import amount, is_share, unit
from dapo_lit.study.report.document import Drawing
from dapo_lit.techniques import REGISTER


def outcomes_figure(table: Mapping[str, Mapping[int, float]], key: str, points: int) -> Drawing:
    """Every run a dot, a row an arm, with the mean and its 95 % t-interval."""
    arms = [arm for arm, seeds in table.items() if seeds]
    figure, grid = new_figure(height=0.24 * len(arms) + 0.8, left=text_width([short(arm) for arm in arms]))
    axes, scale = grid[0, 0], 100 if is_share(key) else 1
    look = looks(arms)
    rows = []
    for place, arm in enumerate(reversed(arms)):
        values = [scale * value for value in table[arm].values()]
        estimate = t_interval(values)
        axes.plot(values, [place] * len(values), look[arm].marker, color=look[arm].colour, alpha=0.6, ms=4)
        if estimate.low is not None and estimate.high is not None:
            axes.plot([estimate.low, estimate.high], [place - 0.28] * 2, color=INK, lw=1.2)
        axes.plot(estimate.mean, place - 0.28, "|", color=INK, ms=7, mew=1.6)
        rows += [{"arm": arm, "seed": seed, key: value} for seed, value in table[arm].items()]
    axes.set_yticks(range(len(arms)), [short(arm) for arm in reversed(arms)])
    axes.set_ylim(-0.6, len(arms) - 0.4)
    title(axes, "", "", f"{key} ({unit(key)})" if unit(key) else key)
    counts = sorted({len(table[arm]) for arm in arms})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    last = "its last checkpoint" if points == 1 else f"mean of its last {points} checkpoints"
    caption = f"{key} of every run ({last}), {seeds} seeds an arm; bar: mean, 95 % t-interval."
    means = ", ".join(f"{arm} {amount(key, t_interval(list(table[arm].values())).mean)}" for arm in arms)
    return Drawing("outcomes", caption, f"Means of {key}: {means}.", figure, pd.DataFrame(rows))


def effects_figure(results: Sequence[Comparison], key: str, family: str) -> Drawing | None:
    """A family of comparisons: each seed's difference a dot, the mean and its interval, a line at zero."""
    shown = [r for r in results if r.contrast.family == family and r.estimate is not None]
    if not shown:
        return None
    figure, grid = new_figure(height=0.26 * len(shown) + 0.8, left=text_width([r.contrast.label for r in shown]))
    axes, scale = grid[0, 0], 100 if is_share(key) else 1
    axes.axvline(0, color=FAINT, lw=1)
    rows = []
    for place, result in enumerate(reversed(shown)):
        estimate = t_interval([scale * d for d in result.differences])
        colour = REGISTER[result.contrast.technique].colour if result.contrast.technique else PETROFF6[0]
        axes.plot([scale * d for d in result.differences], [place] * estimate.n, "o", color=colour, alpha=0.7, ms=3.5)
        if estimate.low is not None and estimate.high is not None and not (result.split and result.split.crossed):
            axes.plot([estimate.low, estimate.high], [place - 0.28] * 2, color=INK, lw=1.2)
        axes.plot(estimate.mean, place - 0.28, "D", color=INK, ms=3.5)
        rows += [
            {"comparison": result.contrast.label, "seed": s, "difference": d}
            for s, d in zip(result.seeds, result.differences, strict=True)
        ]
    axes.set_yticks(range(len(shown)), [result.contrast.label for result in reversed(shown)])
    axes.set_ylim(-0.6, len(shown) - 0.4)
    title(axes, "", "", f"difference in {key}" + (f" ({unit(key)})" if unit(key) else ""))
    n = sorted({len(result.seeds) for result in shown})
    caption = (
        f"Effects on {key}, {family}: dots are differences paired by seed (n = {', '.join(map(str, n))}), "
        "the diamond their mean, the bar its 95 % t-interval (none where pairs cross between two clusters of outcomes)."
    )
    words = ", ".join(f"{r.contrast.label} {amount(key, r.estimate.mean, signed=True)}" for r in shown if r.estimate)
    name = "effects_" + family.replace(" ", "_").replace("=", "_")
    return Drawing(name, caption, f"Mean differences: {words}.", figure, pd.DataFrame(rows))


def interactions_figure(results: Sequence[Comparison], key: str) -> Drawing | None:
    """How much more one technique adds when another is on: a heat map over pairs."""
    pairs = {
        tuple(r.contrast.label.split(" x ")): r.estimate.mean
        for r in results
        if r.contrast.family == "interactions" and r.estimate
    }
    if not pairs:
        return None
    names = [switch for switch in REGISTER if any(switch in pair for pair in pairs)]
    values = np.full((len(names), len(names)), np.nan)
    for (a, b), mean in pairs.items():
        values[names.index(b), names.index(a)] = mean * (100 if is_share(key) else 1)
    figure, grid = new_figure(width=4.2, height=3.6)
    axes = grid[0, 0]
    most = float(np.nanmax(np.abs(values))) or 1.0
    axes.imshow(values, cmap="PuOr", vmin=-most, vmax=most)
    axes.grid(False)
    for (a, b), mean in pairs.items():
        column, row = names.index(a), names.index(b)
        # white on the two dark ends of the map, ink on its pale middle
        colour = ON_DARK if abs(values[row, column]) > 0.6 * most else ON_PALE
        axes.text(column, row, amount(key, mean, signed=True), ha="center", va="center", fontsize=8, color=colour)
    brief = [REGISTER[name].short for name in names]
    axes.set_xticks(range(len(names)), brief)
    axes.set_yticks(range(len(names)), brief)
    caption = (
        f"Interactions on {key}: the effect of one technique with the other on minus with it off"
        + (f", in {unit(key)}" if unit(key) else "")
        + f"; mean over n = {max(r.estimate.n for r in results if r.estimate)} seeds."
    )
    words = ", ".join(f"{a} with {b} {amount(key, mean, signed=True)}" for (a, b), mean in pairs.items())
    rows = pd.DataFrame([{"first": a, "second": b, "interaction": mean} for (a, b), mean in pairs.items()])
    return Drawing("interactions", caption, f"Interactions: {words}.", figure, rows)
