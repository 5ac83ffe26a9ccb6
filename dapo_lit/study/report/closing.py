"""What a study prints when its last cell has ended: what was found, and where the report is."""

from collections.abc import Sequence
from pathlib import Path

from dapo_lit.study.report.calibration_page import close_calibration, screening
from dapo_lit.study.report.report import make_report


def close(study: str, folders: Sequence[Path], command: str) -> str:
    """Writes a small report or a calibration into the first folder; returns what was found as text.

    Raises:
        StudyError: no cell has finished, or the runs may not be compared.
    """
    if study == "screen":
        return screening(folders)
    if study == "calibrate":
        return close_calibration(folders)
    out = folders[0] / "report"
    results, found = make_report(folders, out, command)
    missing = [f"{len(results.missing)} cells are missing; the findings are of those that have ended"]
    return "\n".join([*found, *(missing if results.missing else []), f"report: {out / 'report.html'}"])
