"""A finished study as a report: one HTML file, JSON, and figures as PNG, PDF or SVG."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dapo_lit.study.compare.calibration import read_calibration
from dapo_lit.study.figures.curve_figures import seeds_text
from dapo_lit.study.read.guard import code_versions
from dapo_lit.study.read.health import findings
from dapo_lit.study.read.outcomes import outcome, weights_by_base
from dapo_lit.study.read.registration import Plan, late_registration, read_plan
from dapo_lit.study.read.runs import Runs, load, study_folder
from dapo_lit.study.report.document import Document, bullets, in_terminal, is_empty, write
from dapo_lit.study.report.explore import exploration
from dapo_lit.study.report.html import write_html
from dapo_lit.study.report.page_one import page_one
from dapo_lit.study.report.results import Results, analyse
from dapo_lit.study.report.sections import arms_section, runs_section

OF_SEEDS = ("seeds", "bases", "differences")
"""Fields of a comparison's values at each seed."""


def make_report(
    folders: Sequence[Path],
    out: Path,
    command: str,
    formats: Sequence[str] = ("svg",),
    allow_mixed: bool = False,
    progress: Callable[[str], None] = lambda line: None,
    metric: str | None = None,
    notes: Sequence[str] = (),
) -> tuple[Results, list[str]]:
    """Reads a study, writes its report into `out`, and returns the results and the first page as lines of text.

    Args:
        progress: called with a line of text at each stage.
        metric: the primary metric of runs without a plan; None: held-out accuracy, else the training accuracy.
        notes: sentences for the head of the page.
    """
    runs = load(*folders)
    progress(f"read {len(runs)} runs of {len(runs.arms)} arms")
    home = study_folder(folders[0])
    plan, edits = read_plan(home)
    results = replace(analyse(runs, plan, tuple(edits), allow_mixed, metric), calibration=read_calibration(runs, home))
    progress(f"made {len(results.comparisons)} comparisons, drawing the figures")
    document = build(results, command, late_registration(home, runs), notes)
    write(document, out, formats, progress)
    write_html(document, out / "report.html")
    return results, in_terminal(document.lead)


def build(results: Results, command: str, late: str | None = None, notes: Sequence[str] = ()) -> Document:
    """The report's parts in their order."""
    usable = results.runs.usable
    first = (
        f"Primary metric `{results.metric}`, {_budget_text(usable, results.plan)}, {seeds_text(usable, usable.arms)}. "
        f"Arms are compared on the mean of a run's last checkpoints, paired by seed.{missing_text(results.missing)}"
    )
    lead = page_one(results)
    parts = [
        first,
        bullets(notes),
        bullets([f"**Compared in spite of:** {warning}" for warning in results.warnings]),
        *lead,
        *arms_section(results),
        *runs_section(results, late),
        f"This report: `{command}`",
    ]
    title = f"Study {results.runs.studies[0]}: {len(usable)} runs of {len(usable.arms)} arms"
    kept = [part for part in parts if not is_empty(part)]
    found = [effect.contrast for effect in results.comparisons]
    explored = exploration(usable, results.metric, found, results.family)
    return Document(title, kept, as_json(results), lead[1:], explored)


def _budget_text(runs: Runs, plan: Plan | None) -> str:
    """The last step of the runs, and the limits that were registered."""
    ends = sorted({int(run.metrics.index.max()) for run in runs})
    reached = f"{ends[0]} steps" if len(ends) == 1 else f"{ends[0]} to {ends[-1]} steps"
    limits: Mapping[str, float | None] = (plan.budget or {}) if plan else {}
    named = ", ".join(f"{key} {value:g}" for key, value in limits.items() if value is not None)
    return f"at {reached}" + (f" (registered budget: {named})" if named else "")


def missing_text(missing: Collection[tuple[str, int]]) -> str:
    """The cells without a usable run, arm by arm; empty if there is none.

    >>> missing_text([("dapo", 3), ("dapo", 4)])
    ' 2 cells that were asked for have no usable run: dapo at seeds 3, 4.'
    """
    if not missing:
        return ""
    arms = {arm: [str(seed) for other, seed in missing if other == arm] for arm, _ in missing}
    named = "; ".join(f"{arm} at seeds {', '.join(seeds)}" for arm, seeds in arms.items())
    return f" {len(missing)} cells that were asked for have no usable run: {named}."


def as_json(results: Results) -> dict[str, Any]:
    """Content of report.json besides the tables: every number that the report's sentences are made of."""
    usable = results.runs.usable
    return {
        "study": results.runs.studies[0],
        "metric": results.metric,
        "budget": _budget_text(usable, results.plan),
        "arms": list(usable.arms),
        "base_policies": weights_by_base(usable),
        "outcomes": [
            {"arm": run.arm, "seed": run.seed, "status": run.status, **asdict(reduced)}
            for run in usable
            if (reduced := outcome(run, results.metric))
        ],
        "comparisons": [
            {key: value for key, value in asdict(effect).items() if key in ("contrast", "estimate", "p", *OF_SEEDS)}
            for effect in results.comparisons
        ],
        "effects": [
            {key: value for key, value in asdict(effect).items() if key not in OF_SEEDS} | {"decided": effect.decided}
            for effect in results.effects
        ],
        "exercised": {
            technique: {"can_act": state, "measured": text} for technique, (state, text) in results.act.items()
        },
        "missing": [{"arm": arm, "seed": seed, "reason": reason} for (arm, seed), reason in results.missing.items()],
        "health": {run.name: findings(run) for run in usable if findings(run)},
        "code": code_versions(usable),
        "unreadable": dict(results.runs.unreadable),
        "edits_after_registration": list(results.edits),
        "compared_in_spite_of": list(results.warnings),
    }
