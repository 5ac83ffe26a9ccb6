"""A figure with what a report says about it, and the files it is saved as."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from dapo_lit.study.figures.style import RC

UNDATED: dict[str, dict[str, None]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
"""Metadata that would make two files of the same data differ."""


@dataclass(frozen=True)
class Drawing:
    """A figure, its caption (n, interval, axis), and a description with the numbers."""

    name: str
    caption: str
    alt: str
    figure: Figure

    @cached_property
    def svg(self) -> str:
        return encoded(self.figure, "svg").decode()


def encoded(figure: Figure, kind: str) -> bytes:
    """The figure as a PNG (200 dpi), PDF or SVG file; the same data give the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context(RC):
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
