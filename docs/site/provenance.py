"""Where the cells of a study come from, as their records have it: commit, code and date; and what a report decides of
them, where pages were written when pairs within a base policy were the unit."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cells import load_once

from ablations.compare.calibration import CALIBRATE
from ablations.compare.effects import registered_effects
from ablations.files.layout import CELLS
from ablations.files.tables import read_table
from ablations.read.outcomes import primary_metric
from ablations.read.registration import read_plan


def records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The record of every cell below a study's folder, with the name of the folder in it that holds the cell."""
    for file in sorted(folder.rglob(CELLS)):
        for text in read_table(file, ["run"])["run"]:
            yield file.relative_to(folder).parts[0], json.loads(text)


def cells(folder: Path) -> str:
    """Markdown: a line for each folder of cells and each state of the code in it; verdicts over base policies."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, record in records(folder):
        groups.setdefault(name, []).append(record)
    lines = ["**Cells**, as they recorded it (equal code hashes: the same source files of the package):", ""]
    lines += [_line(name, record) for name, record in groups.items()]
    if nested := verdicts(folder):
        lines += [
            "",
            "**Verdicts** of `python -m dapo_lit.report`, whose unit is the base policy and not the pair:",
            "",
        ]
        lines += nested
    return "\n".join(lines)


def verdicts(folder: Path) -> list[str]:
    """Markdown: what a report decides of each folder of cells with several pairs on each of several base policies."""
    lines = []
    for file in sorted(folder.rglob(CELLS)):
        plan, _ = read_plan(file.parent)
        if plan is None or plan.study == CALIBRATE:  # a calibration asks for the size of d and has no verdicts
            continue
        runs = load_once(file.parent)
        effects = registered_effects(runs, plan, plan.reference, primary_metric(runs, plan.metric))
        if any(1 < effect.estimate.n < len(effect.seeds) for effect in effects):
            place = file.parent.relative_to(folder)
            count, bases = sum(effect.decided for effect in effects), max(effect.estimate.n for effect in effects)
            text = (
                f"{count} of {len(effects)} registered comparisons decided"
                if count
                else (
                    f"none of {len(effects)} registered comparisons decided"
                    if len(effects) > 1
                    else "the registered comparison is not decided"
                )
            )
            lines.append(f"- [{place}]({place}): {text}, n = {bases}")
    return lines


def _line(name: str, found: list[dict[str, Any]]) -> str:
    states = Counter((str(r["git_commit"])[:8], str(r["code_hash"])[:8]) for r in found)
    days = sorted({str(r["started_at"])[:10] for r in found})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    changed = sum(r.get("git_dirty_hash") is not None for r in found)
    code = "; ".join(f"{count} of commit {commit} (code {code})" for (commit, code), count in states.items())
    note = f"; {changed} with uncommitted changes in the checkout" if changed else ""
    return f"- [{name}]({name}): {code}, {when}{note}"
