"""The first page of a report: what its regime can show, the effects, and their cost.

`page_one` gives it as parts of the document, `in_terminal` the same as plain text.
"""

import re
import shutil
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from dapo_lit.study.compare.contrasts import Contrast
from dapo_lit.study.compare.moved import Moved, moved
from dapo_lit.study.figures.difference_figures import differences_figure
from dapo_lit.study.read.health import learned
from dapo_lit.study.read.metric_words import in_words
from dapo_lit.study.read.outcomes import bases
from dapo_lit.study.report.budget_section import cost_table
from dapo_lit.study.report.document import Part, Table
from dapo_lit.study.report.effects_section import effects_section
from dapo_lit.study.report.results import Results
from dapo_lit.techniques import REGISTER

PANELS = 6
WIDEST = 118
"""Columns of text in a wider terminal."""
ALWAYS = ("rollout/entropy", "rollout/length_mean")
"""Metrics that the figure shows in any case, after the primary one."""


def page_one(results: Results) -> list[Part]:
    """Section 1: what the regime can show, the effects, their course in one figure, and their cost."""
    parts: list[Part] = ["## 1. Findings", can_tell(results)]
    found = family(results)
    effects = moved(results.runs, found, bases(results.runs))
    parts += effects_section(results, effects)
    if not found:
        return parts
    drawing = differences_figure(results.runs, found, panels(results.metric, effects))
    return [*parts, *([drawing] if drawing else []), *cost_table(results, found)]


def family(results: Results) -> list[Contrast]:
    """The comparisons that the findings describe."""
    return [result.contrast for result in results.of(results.family) if result.seeds]


def can_tell(results: Results) -> str:
    """What the regime's calibration says about each technique, and which switches had next to nothing to act on."""
    start, found = "**Can this regime tell?**", results.calibration
    if found is None:
        text = (
            f"{start} Not calibrated: no positive control shows what could have been found, so that what is undecided "
            "here may also be beyond this regime."
        )
    else:
        names: dict[str, list[str]] = {"yes": [], "no": [], "decided": []}
        decided = {effect.contrast.technique for effect in results.effects if effect.decided}
        claimed = found.on_accuracy if results.metric.startswith("eval/") else {}
        for switch, why in {**found.verdicts, **claimed}.items():
            label = REGISTER[switch].label if switch in REGISTER else switch
            place = "yes" if not why else "decided" if switch in decided else "no"
            names[place].append(f"{label} ({why})" if why else label)
        text = f"{start} Regime {found.regime}, calibrated with {found.pairs} pairs an arm"
        text += f": for {', '.join(names['yes'])}." if names["yes"] else ": for no technique."
        text += f" Phenomenon absent: {'; '.join(names['no'])}." if names["no"] else ""
        if names["decided"]:
            text += (
                f" Decided here although the control fell short: {'; '.join(names['decided'])}. The control "
                f"asks for two standard deviations in {found.pairs} pairs; this study has its own test."
            )
        others = [c.technique for c in family(results) if c.technique and c.technique not in found.verdicts]
        text += f" Not calibrated for {', '.join(REGISTER[t].label for t in dict.fromkeys(others))}." if others else ""
    idle = [f"{REGISTER[switch].label} ({words})" for switch, words in results.idle.items()]
    runs = results.runs.usable
    if untaught := sum(not learned(run) for run in runs):
        text += f" Nothing was learned in {untaught} of {len(runs)} runs: no update had a gradient."
    return text + (f" Next to nothing to act on: {'; '.join(idle)}." if idle else "")


def panels(metric: str, effects: Sequence[Moved]) -> list[str]:
    """The primary metric, entropy and length, then what moved most; metrics that say the same are shown once."""
    chosen = [metric, *ALWAYS]
    for effect in effects:
        if len(chosen) < PANELS and in_words(effect.key) not in map(in_words, chosen) and not _twin(effect.key, chosen):
            chosen.append(effect.key)
    return chosen


def _twin(key: str, chosen: Sequence[str]) -> bool:
    """Whether a metric is no panel: it repeats one that is shown (reward is accuracy again), or is of the optimiser."""
    name = key.rpartition("/")[2]
    if name.startswith("reward") or "@" in name or not key.startswith(("rollout/", "eval/", "task/")):
        return True
    return any(name.partition("_")[0] == other.rpartition("/")[2].partition("_")[0] for other in chosen)


def in_terminal(parts: Sequence[Part], width: int | None = None) -> list[str]:
    """Text and tables of a document as lines for a terminal, folded to its width; figures are left out."""
    width = width or shutil.get_terminal_size((WIDEST, 24)).columns
    lines: list[str] = []
    for part in parts:
        if isinstance(part, str):
            plain = (re.sub(r"[*`#]", "", line).strip() for line in part.splitlines())
            lines += [
                text
                for line in plain
                for text in textwrap.wrap(line, min(width, WIDEST), subsequent_indent="  ") or [""]
            ]
        elif isinstance(part, Table):
            lines += _table_lines(part, width)
    return lines


def _table_lines(table: Table, width: int) -> list[str]:
    grid = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in (table.columns, *table.rows):
        grid.add_row(*map(Text, row))
    console = Console(width=width - 2, color_system=None)
    with console.capture() as captured:
        console.print(grid)
    return [f"  {line}".rstrip() for line in captured.get().splitlines()]
