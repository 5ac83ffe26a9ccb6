"""A report's parts in order, the files they become, and the first page as text for a terminal."""

import json
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from dapo_lit.study.figures.drawing import Drawing, encoded

WIDEST = 118
"""Columns of text in a wider terminal."""


@dataclass(frozen=True)
class Table:
    """Cells are text as printed; the name is its key in report.json."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


Part = str | Table | Drawing
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
    results: dict[str, Any]
    """Content of report.json besides the tables."""
    lead: Sequence[Part]
    """The first page, which is printed too."""
    explored: dict[str, Any] | None = None
    """What the page's script draws."""


def bullets(items: Sequence[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"- {item}" for item in items)


def write(document: Document, out: Path, formats: Sequence[str], progress: Callable[[str], None]) -> None:
    """Writes report.json (with a list of rows for each table) and figures/."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    tables = {
        part.name: [dict(zip(part.columns, row, strict=True)) for row in part.rows]
        for part in document.parts
        if isinstance(part, Table)
    }
    drawings = [part for part in document.parts if isinstance(part, Drawing)]
    for place, drawing in enumerate(drawings, start=1):
        progress(f"figure {place} of {len(drawings)}: {drawing.name}")
        for kind in formats:
            content = drawing.svg.encode() if kind == "svg" else encoded(drawing.figure, kind)
            (out / "figures" / f"{drawing.name}.{kind}").write_bytes(content)
    (out / "report.json").write_text(json.dumps(document.results | {"tables": tables}, indent=1, default=str) + "\n")


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
    """The table; where a word would be cut to fit the width, a line of text for each row."""
    cells = [table.columns, *table.rows]
    longest = [max(len(word) for row in cells for word in row[k].split() or [""]) for k in range(len(table.columns))]
    if sum(longest) + 2 * len(longest) > width:
        texts = []
        for first, *others in table.rows:
            named = zip(table.columns[1:], others, strict=True)
            rest = ", ".join(f"{name} {cell}".strip() for name, cell in named if cell not in ("", "–"))
            texts.append(f"{first}: {rest}")
        layout: dict[str, Any] = {"initial_indent": "  ", "subsequent_indent": "    ", "break_on_hyphens": False}
        return [line for text in texts for line in textwrap.wrap(text, width, **layout)]
    grid = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in (table.columns, *table.rows):
        grid.add_row(*map(Text, row))
    console = Console(width=width - 2, color_system=None)
    with console.capture() as captured:
        console.print(grid)
    return [f"  {line}".rstrip() for line in captured.get().splitlines()]
