"""A figure with what a report says about it, and the files it is saved as."""

import atexit
import io
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib import font_manager
from matplotlib.figure import Figure

from dapo_lit.study.figures.style import RC

UNDATED: dict[str, dict[str, None]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
"""Metadata that would make two files of the same data differ."""


@dataclass(frozen=True)
class Drawing:
    """A figure, its caption (n, interval, axis), a description with the numbers, and the numbers themselves."""

    name: str
    caption: str
    alt: str
    figure: Figure
    data: pd.DataFrame
    folded: str = ""
    """Heading to click on where the figure is folded away: the same figure over another axis."""

    @cached_property
    def svg(self) -> str:
        return encoded(self.figure, "svg").decode()


@cache
def latin_font() -> str:
    """Registers a copy of DejaVu Sans that holds Latin letters only, and returns its name.

    A PDF embeds the letters that it uses. To take them out of the whole font takes longer than to draw the figure;
    other letters still come from there.
    """
    from fontTools import subset  # only a PDF needs it

    name = "DejaVu Sans Latin"
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    options = subset.Options(layout_features=["kern"], name_IDs=["*"])
    options.drop_tables += ["FFTM"]
    font = subset.load_font(font_manager.findfont("DejaVu Sans"), options)
    letters = subset.Subsetter(options)
    letters.populate(unicodes=[*range(0x20, 0x180), *map(ord, "–—−’…")])
    letters.subset(font)
    for record in font["name"].names:
        if record.nameID in (1, 4, 16):  # family, full name, typographic family
            record.string = name
    font.save(f"{folder}/latin.ttf")
    font_manager.fontManager.addfont(f"{folder}/latin.ttf")
    return name


def encoded(figure: Figure, kind: str) -> bytes:
    """The figure as a PNG (200 dpi), PDF or SVG file; the same data give the same bytes."""
    buffer = io.BytesIO()
    fonts = {"font.sans-serif": [latin_font(), "DejaVu Sans"]} if kind == "pdf" else {}
    with mpl.rc_context(RC | fonts):
        figure.savefig(buffer, format=kind, dpi=200, metadata=UNDATED[kind])
    return buffer.getvalue()


def save(figure: Figure, stem: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Writes stem.png, stem.pdf and stem.svg as asked."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in formats:
        written.append(stem.parent / f"{stem.name}.{kind}")
        written[-1].write_bytes(encoded(figure, kind))
    return written
