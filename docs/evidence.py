"""Makes docs/evidence.md of docs/evidence.yaml: `python docs/evidence.py`."""

from pathlib import Path
from typing import Any

import yaml

from dapo_lit.techniques import REGISTER

FOLDER = Path(__file__).parent
FIELDS = ("about", "result", "model", "task", "runs", "source", "url", "read")
READ = ("paper", "abstract", "thread", "docs", "second-hand")
INTRODUCTION = (
    "# Published evidence\n\n"
    "What others have published about each technique, with model, scale and number of runs. Most numbers are of a "
    "single run without an\ninterval, so that a difference of two points on AIME may be noise: see the last table. "
    '"Read" says what was read of the source;\n**second-hand** results were only seen quoted by others. Additions go '
    "into [evidence.yaml](evidence.yaml), from which\n`python docs/evidence.py` makes this page. This project's own "
    "results are in each technique's page and in its\n[experiments](../experiments).\n"
)


def entries() -> list[dict[str, Any]]:
    """The entries of evidence.yaml, in its order."""
    return list(yaml.safe_load((FOLDER / "evidence.yaml").read_text()))


def page(rows: list[dict[str, Any]]) -> str:
    """The page: a section for each heading, a row for each result."""
    parts = [INTRODUCTION]
    for about in dict.fromkeys(row["about"] for row in rows):
        technique = REGISTER.get(about)
        heading = technique.label.capitalize() if technique else about
        lines = [f"## {heading}", ""]
        if technique:
            lines += [f"[What it is and how to switch it](techniques/{about}.md).", ""]
        lines += ["| result | model | task | runs | source | read |", "|---|---|---|---|---|---|"]
        lines += [_line(row) for row in rows if row["about"] == about]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _line(row: dict[str, Any]) -> str:
    runs = row["runs"] or "not stated"
    read = f"**{row['read']}**" if row["read"] == "second-hand" else row["read"]
    return f"| {row['result']} | {row['model']} | {row['task']} | {runs} | [{row['source']}]({row['url']}) | {read} |"


if __name__ == "__main__":
    (FOLDER / "evidence.md").write_text(page(entries()))
