"""The end of a study, printed when its last cell has ended: its findings, and where the report is."""

from collections.abc import Sequence
from pathlib import Path

from dapo_lit.study.compare.effects import registered_effects
from dapo_lit.study.read.health import learned
from dapo_lit.study.read.outcomes import primary_metric
from dapo_lit.study.read.registration import read_plan
from dapo_lit.study.read.runs import StudyError, load
from dapo_lit.study.report.calibrated import close_calibration
from dapo_lit.study.report.fork_page import close_fork
from dapo_lit.study.report.report import make_report


def close(study: str, folders: Sequence[Path], command: str) -> str:
    """Writes a report or a calibration into the first folder; returns its findings as text.

    Raises:
        StudyError: no cell has finished, none has learned anything, or the runs may not be compared.
    """
    if study == "calibrate":
        return close_calibration(folders)
    if study == "fork":
        return close_fork(folders[0])
    out = folders[0] / "report"
    results, found = make_report(folders, out, command)
    if not any(learned(run) for run in results.runs.usable):
        raise StudyError(
            f"nothing was learned in any of the {len(results.runs.usable)} runs, no update had a gradient: every group "
            f"was all right or all wrong (docs/troubleshooting.md). report: {out / 'report.html'}"
        )
    missing = [f"{len(results.missing)} cells are missing; the findings are of those that have ended"]
    return "\n".join([*found, *(missing if results.missing else []), f"report: {out / 'report.html'}"])


def all_decided(folders: Sequence[Path]) -> bool:
    """True if the runs so far decide every registered comparison."""
    runs, (plan, _) = load(*folders), read_plan(folders[0])
    if plan is None:
        return False
    found = registered_effects(runs, plan, plan.reference, primary_metric(runs, plan.metric))
    return bool(found) and all(effect.decided for effect in found)
