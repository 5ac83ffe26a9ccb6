"""Figures of comparisons: effects with their intervals, and interactions."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ablations.border import is_share
from ablations.compare.contrasts import Effect, compare, contrasts
from ablations.compare.statistics import Estimate
from ablations.figures.style import FAINT, INK, PAPER, PETROFF6, Drawing, new_figure, title, with_caption
from ablations.read.outcomes import (
    amount,
    bases,
    in_words,
    primary_metric,
    scores,
    unit,
    with_interval,
)
from ablations.read.runs import Runs, StudyError
from ablations.techniques import REGISTER

DotRow = tuple[str, Sequence[float], str, Estimate]
"""One row of dots: name, values, colour, mean with interval."""


def effects_figure(effects: Sequence[Effect], key: str, family: str) -> Drawing | None:
    """One row per comparison of a family, one dot per seed, with the mean, its interval and a line at zero."""
    shown = [effect for effect in effects if effect.contrast.family == family and effect.seeds]
    if not shown:
        return None
    switches = [effect.contrast.technique for effect in shown]
    colours = [REGISTER[switch].colour if switch else PETROFF6[0] for switch in switches]
    labels = [effect.contrast.label for effect in shown]
    names = [label.replace(s, REGISTER[s].label) if s else label for label, s in zip(labels, switches, strict=True)]
    dots = [
        (name, effect.differences, colour, effect.estimate)
        for name, effect, colour in zip(names, shown, colours, strict=True)
    ]
    words = in_words(key).partition(" (")[0]
    figure = _dot_rows(dots, key, f"difference in {words}" + (f" ({unit(key)})" if unit(key) else ""))
    figure.axes[0].axvline(0, color=FAINT, lw=1, zorder=1)
    n = sorted({len(effect.seeds) for effect in shown})
    caption = (
        f"Effects on {key}, {family}: dots are differences paired by seed (n = {', '.join(map(str, n))}), "
        "the diamond their mean over base policies, the bar its 95 % t-interval."
    )
    words = ", ".join(f"{n} {amount(key, e.estimate.mean, signed=True)}" for n, e in zip(names, shown, strict=True))
    name = "effects_" + family.replace(" ", "_").replace("=", "_")
    return Drawing(name, caption, f"Mean differences: {words}.", figure)


def _dot_rows(rows: Sequence[DotRow], key: str, label: str) -> Figure:
    """Rows of dots, the first at the top, each with its mean and 95 % t-interval just below."""
    figure, grid = new_figure(height=0.25 * len(rows) + 0.8)
    axes, scale = grid[0, 0], 100 if is_share(key) else 1
    for place, (_, values, colour, estimate) in enumerate(reversed(rows)):
        scaled = [scale * value for value in values]
        axes.plot(scaled, [place] * len(scaled), "o", color=colour, alpha=0.65, ms=4)
        if estimate.low is not None and estimate.high is not None:
            axes.plot([scale * estimate.low, scale * estimate.high], [place - 0.28] * 2, color=INK, lw=1.2)
        axes.plot(scale * estimate.mean, place - 0.28, "D", color=INK, ms=3.5, mew=1.4)
    axes.set_yticks(range(len(rows)), [name for name, *_ in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    title(axes, "", "", label)
    return figure


def interactions_figure(effects: Sequence[Effect], key: str) -> Drawing | None:
    """Interactions of all pairs of techniques with their intervals, on colours of their sign and size."""
    shown = [effect for effect in effects if effect.contrast.family == "interactions"]
    pairs = {tuple(effect.contrast.label.split(" x ")): effect.estimate for effect in shown}
    if not pairs:
        return None
    names = [switch for switch in REGISTER if any(switch in pair for pair in pairs)]
    scale = 100 if is_share(key) else 1
    values = np.full((len(names) - 1, len(names) - 1), np.nan)  # the first has no row and the last no column
    for (a, b), estimate in pairs.items():
        values[names.index(b) - 1, names.index(a)] = scale * estimate.mean
    figure, grid = new_figure(height=0.5 * len(names) + 0.9)
    axes = grid[0, 0]
    most = float(np.nanmax(np.abs(values))) or 1.0
    axes.imshow(values, cmap="PuOr", vmin=-most, vmax=most, aspect="auto")
    axes.grid(False)
    for (a, b), estimate in pairs.items():
        column, row = names.index(a), names.index(b) - 1
        # white on the two dark ends of the map, ink on its pale middle
        colour = PAPER if abs(values[row, column]) > 0.6 * most else INK
        text = with_interval(key, estimate.mean, estimate.low, estimate.high).replace(" [", "\n[")
        axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color=colour)
    axes.set_xticks(range(len(names) - 1), [REGISTER[name].label.replace(" ", "\n", 1) for name in names[:-1]])
    axes.set_yticks(range(len(names) - 1), [REGISTER[name].label for name in names[1:]])
    units = ", ".join(filter(None, [unit(key), "95 % t-interval"]))
    title(axes, f"interaction on {in_words(key).partition(' (')[0]} ({units})")
    caption = (
        f"Interactions on {key}: half of one technique's effect with the other on minus off"
        + (f", in {unit(key)}" if unit(key) else "")
        + f"; mean over n = {max(effect.estimate.n for effect in shown)} and 95 % t-interval."
    )
    words = ", ".join(f"{a} with {b} {amount(key, one.mean, signed=True)}" for (a, b), one in pairs.items())
    return Drawing("interactions", caption, f"Interactions: {words}.", figure)


def plot_effects(runs: Runs, family: str, key: str | None = None) -> Figure:
    """`effects_figure` of one family of comparisons with its caption, for notebooks."""
    name, table = key or primary_metric(runs), scores(runs, key or primary_metric(runs))
    drawing = effects_figure([compare(one, table, bases(runs)) for one in contrasts(runs.arms)], name, family)
    if drawing is None:
        raise StudyError(f"no two arms of {', '.join(runs.arms)} with a common seed make a comparison of {family!r}")
    return with_caption(drawing.figure, drawing.caption)
