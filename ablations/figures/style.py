"""A figure with its caption, and the look of all: colours, dashes and markers of arms, titles, legends, captions.

Arms differ in colour, dash and marker together. The colours are Petroff's six (arXiv 2107.02270), which stay apart
under the three kinds of colour blindness.
"""

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import ArrayLike

from ablations.designs import arm_in_words
from ablations.techniques import DAPO, REGISTER

if TYPE_CHECKING:  # a run's page has no contrasts
    from ablations.compare.contrasts import Contrast

PETROFF6 = ("#5790fc", "#f89c20", "#e42536", "#964a8b", "#9c9ca1", "#7a21dd")
INK, FAINT, PAPER = "#1c1c1e", "#8a8a8f", "#ffffff"
DASHES = ("-", (0, (6, 1.5)), (0, (2.5, 1.2)), (0, (7, 1.5, 1.5, 1.5)), (0, (1, 1.2)), (0, (4, 1.2, 1, 1.2, 1, 1.2)))
MARKERS = ("o", "s", "^", "D", "v", "P")
PAGE_IN = 6.75
"""Width of a paper's page, inches; text is at least 7 points at that size."""

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
    "legend.fontsize": 7.5,
    "pdf.fonttype": 42,  # TrueType, embedded whole: venues refuse type 3
    "ps.fonttype": 42,
    "svg.fonttype": "none",  # text stays text: searchable, and read aloud
    "svg.hashsalt": "dapo_lit",
}

MADE_ID = re.compile(r'(?<=id=")[a-zA-Z][0-9a-f]{10}(?=")|(?<=#)[a-zA-Z][0-9a-f]{10}(?=["\)])')
"""Names that matplotlib gives to parts of an SVG."""


@dataclass(frozen=True)
class Drawing:
    """A figure, its caption (n, interval, axis), and a description with the numbers."""

    name: str
    caption: str
    alt: str
    figure: Figure

    @cached_property
    def svg(self) -> str:
        """The figure as SVG; the same data give the same text."""
        buffer = io.BytesIO()
        with mpl.rc_context(RC):
            self.figure.savefig(buffer, format="svg", metadata={"Date": None})
        names: dict[str, str] = {}
        # Hashes of exact places, whose last digits the layout's solver leaves to chance: numbers instead, in order.
        return MADE_ID.sub(
            lambda found: names.setdefault(found[0], f"{found[0][0]}{len(names) + 1}"), buffer.getvalue().decode()
        )


@dataclass(frozen=True)
class Look:
    """The look of an arm or a comparison in every figure of a report."""

    colour: str
    dash: str | tuple[int, tuple[float, ...]]
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of `plot`."""
        return {"color": self.colour, "ls": self.dash, "marker": self.marker}


def numbered(place: int) -> Look:
    """Looks in order; a second round through the six shifts dash and marker, so that the first 36 all differ."""
    shift = place // 6
    return Look(PETROFF6[place % 6], DASHES[(place + shift) % 6], MARKERS[(place + 2 * shift) % 6])


def technique_look(switch: str) -> Look:
    """The look of a technique in every figure: its colour in the register, a dash and a marker of its own for grey."""
    look = numbered(list(REGISTER).index(switch))
    return Look(REGISTER[switch].colour, look.dash, look.marker)


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """A look for each arm: one that changes a single technique of a reference as that technique looks everywhere (where
    no other arm changes the same one), the others in the given order."""
    names = {f"{reference}{sign}{t}": t for t in REGISTER for reference in ("dapo", "naive_grpo") for sign in "+-"}
    switches = [names[arm] for arm in arms if arm in names]
    chosen = {arm: technique_look(names[arm]) for arm in arms if arm in names and switches.count(names[arm]) == 1}
    used = {(look.dash, look.marker) for look in chosen.values()}
    free = [look for look in map(numbered, range(36)) if (look.dash, look.marker) not in used]
    taken = {look.colour for look in chosen.values()}
    free.sort(key=lambda look: look.colour in taken)  # a colour of its own first: dashes alone are hard to tell apart
    others = (arm for arm in arms if arm not in chosen)
    chosen |= {arm: free[place] if place < len(free) else numbered(place) for place, arm in enumerate(others)}
    return {arm: chosen[arm] for arm in arms}


def contrast_looks(found: "Sequence[Contrast]") -> dict[str, Look]:
    """A look for each comparison by its label: that of its technique, or the next one."""
    return {c.label: technique_look(c.technique) if c.technique else numbered(i) for i, c in enumerate(found)}


def contrast_name(contrast: "Contrast") -> str:
    """A comparison's name in legends and tables: the technique's label, else the comparison's own."""
    if contrast.technique is None:
        return short(contrast.label)
    return REGISTER[contrast.technique].label + " (added)" * _is_added(contrast)


def family_name(contrast: "Contrast") -> str:
    """The family of a comparison in tables: of a technique that is not part of DAPO, what was done."""
    return contrast.family.replace("left out of", "added to") if _is_added(contrast) else contrast.family


def _is_added(contrast: "Contrast") -> bool:
    """True for a technique that the arm around DAPO has and DAPO has not; its family keeps the name it is registered
    by."""
    return contrast.technique not in (None, *DAPO) and contrast.family.startswith("left out of DAPO")


def short(arm: str) -> str:
    """An arm's name in legends.

    >>> short("dapo+overlong_filtering-dynamic_sampling")
    'dapo +filter -dynamic'
    >>> short("loss=mine.soft_clip@loss_options.width=0.2 (dapo)")
    'loss=mine.soft_clip with width 0.2 (dapo)'
    """
    name, space, rest = arm.partition(" ")
    arm = arm_in_words(name) + space + rest
    for switch, technique in REGISTER.items():
        arm = arm.replace(f"+{switch}", f" +{technique.short}").replace(f"-{switch}", f" -{technique.short}")
    return arm.replace("@", " ")


def new_figure(
    rows: int = 1, columns: int = 1, width: float = PAGE_IN, height: float | None = None
) -> tuple[Figure, np.ndarray]:
    """An empty figure of this size in inches (no pyplot, so nothing global) and its axes [rows, columns]."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(width, height or 2.2 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        return figure, np.asarray(figure.subplots(rows, columns, squeeze=False))


def title(axes: Axes, text: str, unit: str = "", x: str = "") -> None:
    """Title at the left, and the labels of both axes."""
    axes.set_title(text, loc="left", fontsize=8.5, color=INK)
    axes.set_ylabel(unit)
    axes.set_xlabel(x)
    if x.endswith("step"):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if x.endswith("tokens"):
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def legend(figure: Figure, names: Mapping[str, Look], fontsize: float = 7.5) -> None:
    """Names of all lines below the panels, in as many columns as fit."""
    inches = 0.0068 * fontsize * max(map(len, names)) + 0.42
    columns = max(1, int(figure.get_size_inches()[0] / inches))
    _grow(figure, 0.021 * fontsize * -(-len(names) // columns) + 0.08)
    figure.legend(
        handles=[Line2D([], [], **look.line, ms=3, lw=1.3, label=name) for name, look in names.items()],
        loc="lower left",
        bbox_to_anchor=(0, 0),
        ncol=columns,
        fontsize=fontsize,
        frameon=False,
        handlelength=2.6,
    )


def _grow(figure: Figure, inches: float) -> float:
    """Makes the figure taller at its bottom, and keeps the panels out of the new space; returns it as a share."""
    width, height = figure.get_size_inches()
    engine = figure.get_layout_engine()
    assert engine is not None
    free = (engine.get()["rect"][1] * height + inches) / (height + inches)
    figure.set_size_inches(width, height + inches)
    figure.set_layout_engine("constrained", rect=(0, free, 1, 1 - free))
    return inches / (height + inches)


def draw_band(axes: Axes, x: ArrayLike, low: ArrayLike, high: ArrayLike, colour: str) -> None:
    """Shades an interval around a line."""
    axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)


def with_caption(figure: Figure, text: str) -> Figure:
    """The figure with its caption below it, wrapped."""
    lines = textwrap.wrap(
        text, int(figure.get_size_inches()[0] / 0.062), break_long_words=False, break_on_hyphens=False
    )
    share = _grow(figure, 0.16 * len(lines) + 0.06)
    for below in figure.legends:
        below.set_bbox_to_anchor((0, share))
    figure.text(0.01, 0.01, "\n".join(lines), fontsize=7.5, va="bottom", ha="left")
    return figure
