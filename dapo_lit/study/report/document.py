"""A report's parts in order, and the files they become: Markdown, JSON, figures with their data."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapo_lit.study.figures.drawing import Drawing, encoded


@dataclass(frozen=True)
class Table:
    """Cells are text as printed; the name is its key in report.json."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The cells as a Markdown table, without the caption."""
        cells = [
            [str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in (self.columns, *self.rows)
        ]
        lines = ["| " + " | ".join(row) + " |" for row in cells]
        return "\n".join([lines[0], "|" + "---|" * len(self.columns), *lines[1:]])


Part = str | Table | Drawing
"""A string is Markdown: a heading, a paragraph, a list."""


def is_empty(part: Part) -> bool:
    """Whether a table has nothing but names and dashes, or a figure no data."""
    match part:
        case Table():
            return all(cell in ("–", "") for row in part.rows for cell in row[1:])
        case Drawing():
            return part.data.empty
    return not part


@dataclass
class Document:
    title: str
    parts: list[Part] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    """What report.json holds."""
    lead: Sequence[Part] = ()
    """The first page, which is printed too."""


def bullets(items: Sequence[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"- {item}" for item in items)


def markdown(document: Document, formats: Sequence[str] = ("png", "pdf", "svg")) -> str:
    """The report as Markdown; figures and tables link to their files, which pages show as PNG if there are such."""
    shown = "png" if "png" in formats else formats[0]
    texts = [f"# {document.title}"]
    for part in document.parts:
        match part:
            case Table():
                texts += [part.markdown(), f"*{part.caption}*"]
            case Drawing(name, caption, alt, folded=""):
                files = " ".join(f"[{kind}](figures/{name}.{kind})" for kind in ("csv", *formats))
                alt = alt.replace("[", "(").replace("]", ")")
                texts += [f"![{alt}](figures/{name}.{shown})", f"*{caption}* {files}"]
            case Drawing(name, folded=heading):
                texts.append(f"[{heading}](figures/{name}.{shown})")
            case _:
                texts.append(part)
    return "\n\n".join(texts) + "\n"


def write(document: Document, out: Path, formats: Sequence[str], progress: Callable[[str], None]) -> None:
    """Writes report.md, report.json (with a list of rows for each table) and figures/ (with their data as CSV)."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    tables = {
        part.name: [dict(zip(part.columns, row, strict=True)) for row in part.rows]
        for part in document.parts
        if isinstance(part, Table)
    }
    drawings = [part for part in document.parts if isinstance(part, Drawing)]
    for place, drawing in enumerate(drawings, start=1):
        progress(f"figure {place} of {len(drawings)}: {drawing.name}")
        drawing.data.to_csv(out / "figures" / f"{drawing.name}.csv", index=False, float_format="%.6g")
        for kind in formats:
            content = drawing.svg.encode() if kind == "svg" else encoded(drawing.figure, kind)
            (out / "figures" / f"{drawing.name}.{kind}").write_bytes(content)
    (out / "report.md").write_text(markdown(document, formats))
    (out / "report.json").write_text(json.dumps(document.results | {"tables": tables}, indent=1, default=str) + "\n")
