"""How every figure looks: colours, dashes and markers of the arms, panels, keys and labels.

Arms differ in colour, dash and marker together, and each line has a label at its end. The colours are Petroff's six
(arXiv 2107.02270), which stay apart under the three kinds of colour blindness; the rungs of a ladder are ordered and
take a sequential map instead.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter
from numpy.typing import ArrayLike

from dapo_lit.study.compare.contrasts import Contrast
from dapo_lit.study.designs import ladder
from dapo_lit.techniques import REGISTER

PETROFF6 = ("#5790fc", "#f89c20", "#e42536", "#964a8b", "#9c9ca1", "#7a21dd")
INK, FAINT, PAPER = "#1c1c1e", "#8a8a8f", "#ffffff"
REFERENCES = ("dapo", "naive_grpo")
PAPERS = "#b4b4ba"
"""The paper's own curves behind ours."""
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

End = tuple[str, float, float, str]
"""A label at a line's end: text, x, y, colour."""


@dataclass(frozen=True)
class Look:
    """How an arm is drawn in every figure of a report."""

    colour: str
    dash: str | tuple[int, tuple[float, ...]]
    marker: str


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """A look for each arm: a ladder's rungs by the sequential map, an arm that changes one technique as that technique
    looks everywhere, others by Petroff's colours in the given order."""
    rungs = [arm.name for arm in ladder()]
    ordered = len(set(arms) & set(rungs)) > max(2, len(arms) // 2)
    changed = {} if ordered else _one_change(arms)
    chosen = {arm: technique_look(switch) for arm, switch in changed.items()}
    shades = sequential(len(rungs))
    place = 0
    for arm in (arm for arm in arms if arm not in changed):
        if ordered and arm in rungs:
            chosen[arm] = _numbered(rungs.index(arm), shades[rungs.index(arm)])
            continue
        lines = {(look.dash, look.marker) for look in chosen.values()}
        while place < 36 and (DASHES[_line(place)[0]], MARKERS[_line(place)[1]]) in lines:
            place += 1
        chosen[arm] = _numbered(place, "#e42536" if ordered else PETROFF6[place % 6])
        place += 1
    return {arm: chosen[arm] for arm in arms}


def _numbered(place: int, colour: str) -> Look:
    dash, marker = _line(place)
    return Look(colour, DASHES[dash], MARKERS[marker])


def _line(place: int) -> tuple[int, int]:
    """Dash and marker by number; a second round through the six shifts them, so that the first 36 all differ."""
    shift = place // 6
    return (place + shift) % 6, (place + 2 * shift) % 6


def _one_change(arms: Sequence[str]) -> dict[str, str]:
    """Arms that are a reference with one technique more or less, where no other arm changes the same one."""
    found = {
        arm: switch
        for arm in arms
        for switch in REGISTER
        if arm in {f"{r}{s}{switch}" for r in REFERENCES for s in "+-"}
    }
    switches = list(found.values())
    return {arm: switch for arm, switch in found.items() if switches.count(switch) == 1}


def technique_look(switch: str) -> Look:
    """How a technique is drawn wherever it is: its colour in the register, a dash and a marker of its own for grey."""
    return _numbered(list(REGISTER).index(switch), REGISTER[switch].colour)


WITHOUT = Look(FAINT, DASHES[2], "x")
"""The arm that a technique is compared with."""


def contrast_looks(found: Sequence[Contrast]) -> dict[str, Look]:
    """A look for each comparison by its label: that of its technique, or the next of Petroff's colours."""
    chosen: dict[str, Look] = {}
    for contrast in found:
        place = len(chosen) % 6
        own = Look(PETROFF6[place], DASHES[place], MARKERS[place])
        chosen[contrast.label] = technique_look(contrast.technique) if contrast.technique else own
    return chosen


def contrast_name(contrast: Contrast) -> str:
    """A comparison's name in keys and tables: the technique's label, else the comparison's own."""
    return REGISTER[contrast.technique].label if contrast.technique else short(contrast.label)


def short(arm: str) -> str:
    """An arm's name as lines are labelled with it.

    >>> short("dapo+overlong_filtering-dynamic_sampling")
    'dapo +filter -dynamic'
    """
    for switch, technique in REGISTER.items():
        arm = arm.replace(f"+{switch}", f" +{technique.short}").replace(f"-{switch}", f" -{technique.short}")
    return arm.replace("@", " ")


def sequential(count: int) -> tuple[str, ...]:
    """Viridis without its palest fifth, dark to light."""
    return tuple(mpl.colors.to_hex(mpl.colormaps["viridis"](x)) for x in np.linspace(0, 0.82, count))


def new_figure(
    rows: int = 1,
    columns: int = 1,
    width: float = PAGE_IN,
    height: float | None = None,
    left: float = 0.62,
    labels: float = 0.1,
    below: float = 0.0,
    above: float = 0.0,
    over: float = 0.28,
    under: float = 0.46,
) -> tuple[Figure, np.ndarray]:
    """An empty figure (no pyplot, so nothing global) and its axes [rows, columns]; sizes in inches.

    Args:
        left: to the left of each panel, for its y labels.
        labels: to the right of each panel, for the names of lines.
        below, above: kept free at the bottom (a key) and at the top (a heading) of the figure.
        over, under: above each panel for its title, and below it for its x label.
    """
    tall = height or 2.2 * rows + below + above
    wide = width / columns - left - labels
    high = (tall - below - above) / rows - over - under
    with mpl.rc_context(RC):
        figure = Figure(figsize=(width, tall))
        FigureCanvasAgg(figure)
        places = {
            "left": left / width,
            "right": 1 - labels / width,
            "bottom": (below + under) / tall,
            "top": 1 - (above + over) / tall,
            "wspace": (left + labels) / wide,
            "hspace": (over + under) / high,
        }
        grid = np.asarray(figure.subplots(rows, columns, squeeze=False, gridspec_kw=places))
    for axes in grid.flat:  # a fixed place for the axes' labels: searching for a free one is slow
        axes.xaxis.set_label_coords(0.5, -0.25 / high)
        axes.yaxis.set_label_coords(-0.44 / wide, 0.5)
    return figure, grid


def text_width(texts: Sequence[str]) -> float:
    """Inches that the longest of some labels takes at 7.5 points."""
    return 0.065 * max((len(text) for text in texts), default=0) + 0.12


@dataclass(frozen=True)
class Key:
    """Names of lines: short names are written at the lines' ends; for long ones a letter, explained in a key below."""

    at_end: Mapping[str, str]
    below: Sequence[tuple[str, Look]]

    @property
    def columns(self) -> int:
        return 3 if text_width([text for text, _ in self.below]) < 1.6 else 2

    @property
    def height(self) -> float:
        """Inches to keep free for the key."""
        return 0.17 * -(-len(self.below) // self.columns) + 0.08 if self.below else 0.0


def line_key(arms: Sequence[str], look: Mapping[str, Look]) -> Key:
    """Names for the lines of some arms."""
    names = [short(arm) for arm in arms]
    if text_width(names) < 1.1:
        return Key(dict(zip(arms, names, strict=True)), ())
    letters = "abcdefghijklmnopqrstuvwxyz"[: len(arms)]
    below = [(f"{letter}  {name}", look[arm]) for letter, name, arm in zip(letters, names, arms, strict=True)]
    return Key(dict(zip(arms, letters, strict=True)), below)


def draw_key(figure: Figure, key: Key) -> None:
    """The key at the bottom of the figure, if there is one."""
    handles = [
        Line2D([], [], color=look.colour, ls=look.dash, marker=look.marker, ms=3.5, lw=1.6, label=text)
        for text, look in key.below
    ]
    if handles:
        figure.legend(handles=handles, loc="lower left", ncol=key.columns, fontsize=7.5, handlelength=3.2)


def title(axes: Axes, text: str, unit: str = "", x: str = "") -> None:
    """Title at the left, and the labels of both axes."""
    axes.set_title(text, loc="left", fontsize=8.5, color=INK, y=1.0)  # a given y saves a search for overlaps
    axes.set_ylabel(unit)
    axes.set_xlabel(x)
    if x.endswith("tokens"):
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def draw_band(axes: Axes, x: ArrayLike, low: ArrayLike, high: ArrayLike, colour: str) -> None:
    """Shades an interval around a line."""
    axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)


def with_caption(figure: Figure, text: str) -> Figure:
    """The figure with its caption below it, wrapped; the figure grows by the room that takes."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(text, int(width / 0.062), break_long_words=False, break_on_hyphens=False)
    room = 0.16 * len(lines) + 0.06
    share = height / (height + room)
    for axes in figure.axes:
        box = axes.get_position()
        axes.set_position((box.x0, 1 - share * (1 - box.y0), box.width, share * box.height))
    for legend in figure.legends:
        legend.set_bbox_to_anchor((0, 1 - share, 1, share))
    figure.set_size_inches(width, height + room)
    figure.text(0.01, 0.01, "\n".join(lines), fontsize=7.5, va="bottom", ha="left")
    return figure


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights moved to be at least `gap` apart, overlapping ones around their common mean.

    >>> _apart([0.0, 1.0, 1.0], 0.5)
    [0.0, 0.75, 1.25]
    """
    clusters: list[tuple[int, float]] = []  # (labels, their mean height)
    for height in heights:
        count, mean = 1, height
        while clusters and mean - clusters[-1][1] < gap * (count + clusters[-1][0]) / 2:
            below, lower = clusters.pop()
            mean = (count * mean + below * lower) / (count + below)
            count += below
        clusters.append((count, mean))
    return [mean + gap * (place - (count - 1) / 2) for count, mean in clusters for place in range(count)]


def label_ends(axes: Axes, ends: Sequence[End], gap_points: float = 8.5) -> None:
    """Writes each line's name at its end, moved apart vertically where they would overlap.

    Call it after all lines are drawn: it places the labels by the limits of the axes.
    """
    if not ends:
        return
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    height_points = axes.get_position().height * axes.figure.get_size_inches()[1] * 72  # type: ignore[union-attr]
    gap = (high - low) * gap_points / max(height_points, 1)
    ordered = sorted(ends, key=lambda end: end[2])
    spots = _apart([end[2] for end in ordered], gap)
    ceiling = high
    for place in reversed(range(len(spots))):  # labels that pile up at the top move down
        spots[place] = min(spots[place], ceiling)
        ceiling = spots[place] - gap
    across = axes.get_yaxis_transform()  # x as a share of the panel, y in data
    leaders = []
    for (text, x, y, _), spot in zip(ordered, spots, strict=True):
        axes.text(1.02, spot, text, color=INK, fontsize=7.5, va="center", transform=across)
        leaders.append([((x - left) / (right - left), y), (1.005, spot)])
    colours = [end[3] for end in ordered]
    axes.add_artist(
        LineCollection(leaders, colors=colours, linewidths=0.8, linestyles=":", transform=across, clip_on=False)
    )
