"""A report before it is written: blocks in order, and its files as Markdown, tables and figures."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from dapo_lit.study.figures.style import save, svg_text


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Prose:
    text: str


@dataclass(frozen=True)
class Bullets:
    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Table:
    """Cells are text as printed; the name is that of its files."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Drawing:
    """A figure, its caption (n, interval, axis), a description with the numbers, and the numbers themselves."""

    name: str
    caption: str
    alt: str
    figure: Figure
    data: pd.DataFrame
    folded: str = ""
    """What unfolds it where it is shown on request only: the same figure over another axis."""

    @cached_property
    def svg(self) -> str:
        return svg_text(self.figure)


Block = Heading | Prose | Bullets | Code | Table | Drawing


@dataclass
class Document:
    title: str
    blocks: list[Block] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    """What report.json holds."""

    def add(self, *blocks: Block) -> None:
        self.blocks.extend(blocks)


def write(document: Document, out: Path, formats: Sequence[str]) -> None:
    """Writes report.md, report.json, tables/ (CSV, LaTeX) and figures/ (as asked, with the data as CSV)."""
    (out / "tables").mkdir(parents=True, exist_ok=True)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for block in document.blocks:
        if isinstance(block, Table):
            frame = pd.DataFrame([list(row) for row in block.rows], columns=list(block.columns))
            frame.to_csv(out / "tables" / f"{block.name}.csv", index=False)
            (out / "tables" / f"{block.name}.tex").write_text(latex(block))
        elif isinstance(block, Drawing):
            save(block.figure, out / "figures" / block.name, [kind for kind in formats if kind != "svg"])
            if "svg" in formats:
                (out / "figures" / f"{block.name}.svg").write_text(block.svg)
            block.data.to_csv(out / "figures" / f"{block.name}.csv", index=False, float_format="%.6g")
    (out / "report.md").write_text(markdown(document, formats))
    (out / "report.json").write_text(json.dumps(document.results, indent=1, default=str) + "\n")


def markdown(document: Document, formats: Sequence[str] = ("png", "pdf", "svg")) -> str:
    """The report as Markdown; figures and tables link to their files."""
    parts = [f"# {document.title}"]
    for block in document.blocks:
        match block:
            case Heading(text, level):
                parts.append(f"{'#' * level} {text}")
            case Prose(text):
                parts.append(text)
            case Bullets(items):
                parts.append("\n".join(f"- {item}" for item in items))
            case Code(text):
                parts.append(f"```\n{text}\n```")
            case Table(name, caption, columns, rows):
                lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in [columns, *rows]]
                lines.insert(1, "|" + "---|" * len(columns))
                parts.append(
                    "\n".join(lines) + f"\n\n*{caption}* ([CSV](tables/{name}.csv), [LaTeX](tables/{name}.tex))"
                )
            case Drawing():
                files = " ".join(f"[{kind}](figures/{block.name}.{kind})" for kind in ("csv", *formats))
                if block.folded:
                    parts.append(f"[{block.folded}](figures/{block.name}.png)")
                else:
                    alt = block.alt.replace("[", "(").replace("]", ")")
                    parts.append(f"![{alt}](figures/{block.name}.png)\n\n*{block.caption}* {files}")
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def latex(table: Table) -> str:
    """The table as a LaTeX `table` with booktabs rules."""
    body = [" & ".join(map(_latex, row)) + r" \\" for row in table.rows]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(table.caption)}}}",
            rf"\begin{{tabular}}{{{'l' * len(table.columns)}}}",
            r"\toprule",
            " & ".join(map(_latex, table.columns)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex(text: str) -> str:
    escaped = str(text).replace("\\", r"\textbackslash ")
    for sign in "&%$#_{}":
        escaped = escaped.replace(sign, "\\" + sign)
    return escaped.replace("~", r"\textasciitilde ").replace("^", r"\textasciicircum ").replace("–", "--")
