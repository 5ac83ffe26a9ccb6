"""A finished study as a report: Markdown, one HTML file, JSON, tables as CSV and LaTeX, figures as PNG, PDF and SVG."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from dapo_lit.study.figures.curve_figures import seeds_text
from dapo_lit.study.read.health import findings
from dapo_lit.study.read.outcomes import outcome
from dapo_lit.study.read.registration import late_registration, read_plan
from dapo_lit.study.read.runs import load, run_folders
from dapo_lit.study.report.budget_section import budget_section
from dapo_lit.study.report.checks_section import (
    commands_section,
    health_section,
    power_section,
    registration,
    versions_section,
)
from dapo_lit.study.report.document import Document, bullets, write
from dapo_lit.study.report.findings_section import card_section, figures_section, findings_section
from dapo_lit.study.report.html import write_html
from dapo_lit.study.report.results import Results, analyse
from dapo_lit.study.report.sentences import missing_text

REPORT_AXES = ("step", "gradient_step", "tokens_generated", "wall_s")


def make_report(
    folders: Sequence[Path],
    out: Path,
    command: str,
    axes: Sequence[str] = REPORT_AXES,
    formats: Sequence[str] = ("png", "pdf", "svg"),
    paper: pd.DataFrame | None = None,
    allow_mixed: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> Results:
    """Reads a study and writes its report into `out`.

    Args:
        axes: x-axes of the paper's figures; the first is shown, the others are folded away.
        paper: the paper's own curves.
        progress: called with a line of text at each stage.

    Raises:
        StudyError: the runs cannot be read or may not be compared.
    """
    runs = load(*folders)
    progress(f"read {len(runs)} runs of {len(runs.arms)} arms")
    home = run_folders(folders[0])[0].parent.parent  # the folder that holds the arms
    plan, edits = read_plan(home)
    results = analyse(runs, plan, tuple(edits), allow_mixed)
    progress(f"made {len(results.comparisons)} comparisons, drawing the figures")
    document = build(results, command, axes, paper, late_registration(home, runs))
    write(document, out, formats, progress)
    write_html(document, out)
    return results


def build(
    results: Results, command: str, axes: Sequence[str], paper: pd.DataFrame | None = None, late: str | None = None
) -> Document:
    """The report's parts in their order."""
    usable = results.runs.usable
    first = (
        f"Primary metric `{results.metric}`, {results.budget}, {seeds_text(usable, usable.arms)}. Arms are compared on "
        f"the mean of a run's last checkpoints, paired by seed.{missing_text(results.missing)}"
    )
    warnings = [bullets([f"**Compared in spite of:** {warning}" for warning in results.warnings])]
    parts = [
        first,
        *(warnings if results.warnings else []),
        *registration(results, late),
        *findings_section(results),
        *card_section(results),
        *figures_section(results, axes, paper),
        *budget_section(results),
        *health_section(results),
        *power_section(results),
        *versions_section(results),
        *commands_section(results, command),
    ]
    title = f"Study {results.runs.studies[0]}: {len(usable)} runs of {len(usable.arms)} arms"
    return Document(title, parts, as_json(results))


def as_json(results: Results) -> dict[str, Any]:
    """What report.json holds: every number that the report's sentences and tables are made of."""
    usable = results.runs.usable
    return {
        "study": results.runs.studies[0],
        "metric": results.metric,
        "budget": results.budget,
        "arms": list(usable.arms),
        "outcomes": [
            {"arm": run.arm, "seed": run.seed, "status": run.status, **asdict(reduced)}
            for run in usable
            if (reduced := outcome(run, results.metric))
        ],
        "comparisons": [asdict(result) | {"decided": result.decided(results.alpha)} for result in results.comparisons],
        "claims": [asdict(claim) for claim in results.claims],
        "exercised": {
            technique: {"can_act": state, "measured": text} for technique, (state, text) in results.act.items()
        },
        "missing": [{"arm": arm, "seed": seed, "reason": reason} for (arm, seed), reason in results.missing.items()],
        "health": {run.name: findings(run) for run in usable if findings(run)},
        "unreadable": dict(results.runs.unreadable),
        "edits_after_registration": list(results.edits),
        "compared_in_spite_of": list(results.warnings),
    }
