"""Where the cells of a study come from: commit, code and date, as their records have them."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dapo_lit.runs.files.tables import read_table
from dapo_lit.study.read.packed_cells import CELLS


def records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The record of every cell below a study's folder, with the name of the folder in it that holds the cell."""
    for file in sorted(folder.rglob(CELLS)):
        for text in read_table(file, ["run"])["run"]:
            yield file.relative_to(folder).parts[0], json.loads(text)


def cells(folder: Path) -> str:
    """Markdown: a line for each folder of cells and each state of the code in it."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, record in records(folder):
        groups.setdefault(name, []).append(record)
    lines = [_line(name, record) for name, record in groups.items()]
    return "**Cells**, as they recorded it (equal code hashes: the same source files of the package):\n\n" + "\n".join(
        lines
    )


def _line(name: str, found: list[dict[str, Any]]) -> str:
    states = Counter((str(r["git_commit"])[:8], str(r["code_hash"])[:8]) for r in found)
    days = sorted({str(r["started_at"])[:10] for r in found})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    changed = sum(r.get("git_dirty_hash") is not None for r in found)
    code = "; ".join(f"{count} of commit {commit} (code {code})" for (commit, code), count in states.items())
    note = f"; {changed} with uncommitted changes in the checkout" if changed else ""
    return f"- [{name}]({name}): {code}, {when}{note}"
