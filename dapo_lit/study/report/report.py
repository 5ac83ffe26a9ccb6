"""A finished study as a report: Markdown, one HTML file, JSON, tables as CSV and LaTeX, figures as PNG, PDF and SVG."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

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
from dapo_lit.study.report.document import Bullets, Document, Prose, write
from dapo_lit.study.report.findings_section import card_section, figures_section, findings_section
from dapo_lit.study.report.html import write_html
from dapo_lit.study.report.results import Results, analyse

REPORT_AXES = ("step", "gradient_step", "tokens_generated", "wall_s")


def make_report(
    folders: Sequence[Path],
    out: Path,
    command: str,
    axes: Sequence[str] = REPORT_AXES,
    formats: Sequence[str] = ("png", "pdf", "svg"),
    paper: pd.DataFrame | None = None,
    allow_mixed: bool = False,
) -> Results:
    """Reads a study and writes its report into `out`.

    Args:
        axes: x-axes of the paper's figures; the first is shown, the others are folded away.
        paper: the paper's own curves.

    Raises:
        StudyError: the runs cannot be read or may not be compared.
    """
    runs = load(*folders)
    home = _study_folder(folders[0])
    plan, edits = read_plan(home)
    results = analyse(runs, plan, tuple(edits), allow_mixed)
    document = build(results, command, axes, paper, late_registration(home, runs))
    write(document, out, formats)
    write_html(document, out)
    return results


def _study_folder(folder: Path) -> Path:
    """The folder that holds the arms, whichever level of a study was named."""
    first = run_folders(folder)[0]
    return first.parent.parent


def build(
    results: Results, command: str, axes: Sequence[str], paper: pd.DataFrame | None = None, late: str | None = None
) -> Document:
    """The report's blocks in their order."""
    usable = results.runs.usable
    document = Document(f"Study {results.runs.studies[0]}: {len(usable)} runs of {len(usable.arms)} arms")
    seeds = {arm: len(usable.of(arm)) for arm in usable.arms}
    counted = sorted(set(seeds.values()))
    spread = f"{counted[0]}" if len(counted) == 1 else f"{counted[0]} to {counted[-1]}"
    document.add(
        Prose(
            f"Primary metric `{results.metric}`, {results.budget}, {spread} seed{'s' if counted[-1] > 1 else ''} an "
            f"arm. "
            "Arms are compared on the mean of a run's last checkpoints, paired by seed."
        )
    )
    if results.warnings:
        document.add(Bullets([f"**Compared in spite of:** {warning}" for warning in results.warnings]))
    document.add(*registration(results, late))
    document.add(*findings_section(results), *card_section(results), *figures_section(results, axes, paper))
    document.add(*budget_section(results), *health_section(results), *power_section(results))
    document.add(*versions_section(results), *commands_section(results, command))
    document.results = as_json(results)
    return document


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
