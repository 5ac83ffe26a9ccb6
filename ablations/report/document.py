"""The parts of a page, in order, and as text for a terminal."""

import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ablations.figures.style import Drawing
from ablations.techniques import REGISTER

WIDEST = 118
"""Columns of text in a wider terminal."""


@dataclass(frozen=True)
class Table:
    """Cells are text as printed; the name is its key in report.json."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Buttons:
    """Links to pages near this one, shown as buttons; addresses are relative, with names of a run in them quoted."""

    links: Sequence[tuple[str, str]]
    """(label, relative address)."""


def switch_buttons(address: str) -> Buttons:
    """A button for each technique, which opens the page of a recorded step with that switch in its other position."""
    return Buttons([(technique.label, f"{address}#{technique.switch}") for technique in REGISTER.values()])


Part = str | Table | Drawing | Buttons
"""A string is Markdown: a heading, a paragraph, a list."""


def is_empty(part: Part) -> bool:
    """True for an empty text, and for a table of names and dashes."""
    if isinstance(part, Table):
        return all(cell in ("–", "") for row in part.rows for cell in row[1:])
    return not part


@dataclass(frozen=True)
class Document:
    title: str
    parts: Sequence[Part]
    explored: dict[str, Any] | None = None
    """Data for the page's script."""


def bullets(items: Sequence[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"- {item}" for item in items)


def in_terminal(parts: Sequence[Part], width: int | None = None) -> list[str]:
    """Text and tables as lines for a terminal, folded to its width; figures are left out."""
    width = width or shutil.get_terminal_size((WIDEST, 24)).columns
    lines: list[str] = []
    for part in parts:
        if isinstance(part, str):
            for line in part.splitlines():
                plain = re.sub(r"[*`#]", "", line).strip()
                lines += textwrap.wrap(plain, min(width, WIDEST), subsequent_indent="  ") or [""]
        elif isinstance(part, Table):
            lines += _table_lines(part, width)
    return lines


def _table_lines(table: Table, width: int) -> list[str]:
    """The table, cells folded at spaces; a line of text for each row where a word would not fit its column."""
    cells, columns = [table.columns, *table.rows], range(len(table.columns))
    widths = [max(len(word) for row in cells for word in row[k].split() or [""]) for k in columns]
    wanted = [max(len(row[k]) for row in cells) for k in columns]
    room = width - 2 * len(widths) - sum(widths)  # each column has two spaces before it
    if room < 0:
        texts = []
        for first, *others in table.rows:
            named = zip(table.columns[1:], others, strict=True)
            rest = ", ".join(f"{name} {cell}".strip() for name, cell in named if cell not in ("", "–"))
            texts.append(f"{first}: {rest}")
        layout: dict[str, Any] = {"initial_indent": "  ", "subsequent_indent": "    ", "break_on_hyphens": False}
        return [line for text in texts for line in textwrap.wrap(text, width, **layout)]
    # What is left goes to the columns that are folded most.
    while room > 0 and widths != wanted:
        narrow = max(columns, key=lambda k: wanted[k] / max(widths[k], 1))
        widths[narrow], room = widths[narrow] + 1, room - 1
    lines = []
    for row in cells:
        folded = [textwrap.wrap(cell, max(w, 1), break_on_hyphens=False) for cell, w in zip(row, widths, strict=True)]
        for parts in zip_longest(*folded, fillvalue=""):
            lines.append("".join(f"  {part:<{w}}" for part, w in zip(parts, widths, strict=True)).rstrip())
    return lines
