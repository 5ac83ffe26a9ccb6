"""How every figure looks: colours, dashes and markers of the arms, captions, and the four ways a figure is saved.

Arms are told apart by colour, dash and marker together, and by a label at the line's end. The colours are Petroff's six
(arXiv 2107.02270), which stay apart under the three kinds of colour blindness; the rungs of a ladder are ordered and
take a sequential map instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dapo_lit.study.designs import ladder

PETROFF6 = ("#5790fc", "#f89c20", "#e42536", "#964a8b", "#9c9ca1", "#7a21dd")
INK, FAINT, PAPER = "#1c1c1e", "#8a8a8f", "#ffffff"
DASHES = ("-", (0, (6, 1.5)), (0, (2.5, 1.2)), (0, (7, 1.5, 1.5, 1.5)), (0, (1, 1.2)), (0, (4, 1.2, 1, 1.2, 1, 1.2)))
MARKERS = ("o", "s", "^", "D", "v", "P")
COLUMN_IN, PAGE_IN = 3.25, 6.75
"""Widths of a paper's column and page, inches; text is at least 7 points at that size."""

RC: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d9d9de",
    "grid.linewidth": 0.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType, embedded whole: venues refuse type 3
    "ps.fonttype": 42,
    "svg.fonttype": "none",  # text stays text: searchable, and read aloud
    "svg.hashsalt": "dapo_lit",
}


@dataclass(frozen=True)
class Look:
    """How an arm is drawn in every figure of a report."""

    colour: str
    dash: str | tuple[int, tuple[float, ...]]
    marker: str


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """A look for each arm: a ladder's rungs by the sequential map, others by Petroff's colours in the given order."""
    rungs = [arm.name for arm in ladder()]
    ordered = len(set(arms) & set(rungs)) > 2
    shades = sequential(len(rungs))
    chosen: dict[str, Look] = {}
    free = 0
    for arm in arms:
        if ordered and arm in rungs:
            place = rungs.index(arm)
            colour = shades[place]
        else:
            place = free
            colour = "#e42536" if ordered else PETROFF6[place % 6]
            free += 1
        # the second round through the six colours shifts dashes and markers, so that no two arms share all three
        shift = place // 6
        chosen[arm] = Look(colour, DASHES[(place + shift) % 6], MARKERS[(place + 2 * shift) % 6])
    return chosen


SHORT = {
    "overlong_filtering": "filter",
    "clip_higher": "clip",
    "soft_overlong_punishment": "soft",
    "token_level_loss": "token",
    "dynamic_sampling": "dynamic",
}


def short(arm: str) -> str:
    """An arm's name as lines are labelled with it.

    >>> short("dapo+overlong_filtering-dynamic_sampling")
    'dapo +filter -dynamic'
    """
    for technique, brief in SHORT.items():
        arm = arm.replace(f"+{technique}", f" +{brief}").replace(f"-{technique}", f" -{brief}")
    return arm.replace("@", " ")


def sequential(count: int) -> tuple[str, ...]:
    """Viridis without its palest fifth, dark to light."""
    return tuple(mpl.colors.to_hex(mpl.colormaps["viridis"](x)) for x in np.linspace(0, 0.82, count))


def new_figure(
    rows: int = 1, columns: int = 1, width: float = PAGE_IN, height: float | None = None
) -> tuple[Figure, np.ndarray]:
    """An empty figure (no pyplot, so nothing global) and its axes [rows, columns]."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(width, height or 2.3 * rows + 0.4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = np.asarray(figure.subplots(rows, columns, squeeze=False))
    return figure, axes


def save(figure: Figure, stem: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Writes stem.png (200 dpi), .pdf and .svg as asked; the same data give the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    dates = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with mpl.rc_context(RC):
        for kind in formats:
            path = stem.parent / f"{stem.name}.{kind}"
            figure.savefig(path, dpi=200, metadata=dates[kind])
            written.append(path)
    return written


def title(axes: Axes, text: str, unit: str = "", x: str = "") -> None:
    """Title at the left, and the labels of both axes."""
    axes.set_title(text, loc="left", fontsize=8.5, color=INK)
    axes.set_ylabel(unit)
    axes.set_xlabel(x)


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights moved to be at least `gap` apart, overlapping ones around their common mean.

    >>> _apart([0.0, 1.0, 1.0], 0.5)
    [0.0, 0.75, 1.25]
    """
    clusters: list[list[float]] = []
    for height in heights:
        clusters.append([height])
        while len(clusters) > 1 and _bottom(clusters[-1], gap) < _top(clusters[-2], gap) + gap:
            clusters[-2:] = [clusters[-2] + clusters[-1]]
    return [_bottom(cluster, gap) + place * gap for cluster in clusters for place in range(len(cluster))]


def _bottom(cluster: Sequence[float], gap: float) -> float:
    return float(np.mean(cluster)) - gap * (len(cluster) - 1) / 2


def _top(cluster: Sequence[float], gap: float) -> float:
    return float(np.mean(cluster)) + gap * (len(cluster) - 1) / 2


def label_ends(axes: Axes, ends: Sequence[tuple[str, float, float, str]], gap_points: float = 8.5) -> None:
    """Writes each line's name at its end (text, x, y, colour), moved apart vertically where they would overlap.

    Call after all lines are drawn: it places the labels by the limits of the axes.
    """
    if not ends:
        return
    low, high = axes.get_ylim()
    height_points = axes.get_position().height * axes.figure.get_size_inches()[1] * 72  # type: ignore[union-attr]
    gap = (high - low) * gap_points / max(height_points, 1)
    ordered = sorted(ends, key=lambda end: end[2])
    for (text, x, y, colour), spot in zip(ordered, _apart([end[2] for end in ordered], gap), strict=True):
        axes.annotate(
            text,
            xy=(x, y),
            xytext=(1.02, spot),
            textcoords=("axes fraction", "data"),
            color=INK,
            fontsize=7.5,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.8, "shrinkA": 0, "shrinkB": 1},
            annotation_clip=False,
        )
