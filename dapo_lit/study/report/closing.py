"""The end of a study, printed when its last cell has ended: its findings, and where the report is; of a calibration,
calibration.json and one sentence a technique.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dapo_lit.study.compare.calibration import FILE, Row, calibrate
from dapo_lit.study.compare.effects import registered_effects
from dapo_lit.study.compare.statistics import pairs_needed
from dapo_lit.study.read.health import learned
from dapo_lit.study.read.outcomes import amount, primary_metric, unit, with_interval
from dapo_lit.study.read.registration import read_plan
from dapo_lit.study.read.runs import StudyError, load
from dapo_lit.study.report.fork_page import close_fork
from dapo_lit.study.report.report import make_report


def close_calibration(folders: Sequence[Path]) -> str:
    """Writes calibration.json into the first folder; returns its answers and where it is."""
    runs, (plan, _) = load(*folders), read_plan(folders[0])
    regime = next((run.config["regime"] for run in runs if run.config.get("regime")), None)
    if regime is None:
        raise StudyError("these runs belong to no regime (+regime=NAME)")
    found = calibrate(runs, regime, primary_metric(runs, plan.metric if plan else None))
    (folders[0] / FILE).write_text(json.dumps(found, indent=1) + "\n")
    return "\n".join([*_answers(found), f"calibration: {folders[0] / FILE}"])


def _answers(found: Mapping[str, Any]) -> list[str]:
    """One sentence a technique, the placebo on each outcome, and the effects that a number of pairs can show."""
    key, lines, placebo = found["metric"], [], {}
    for row in found["techniques"]:
        text = f"{row['technique']}: {'sensitive' if row['admitted'] else 'not sensitive'}: {row['reason']}"
        text += "".join(f"; {e['arms'][0]} minus {e['arms'][1]}: {difference_text(e)}" for e in row["doses"])
        if row["accuracy_reason"] is not None:
            text += f"; by {key}: {row['accuracy_reason'] or 'yes'}"
        lines.append(text + (f" ({difference_text(row['accuracy'])})" if row["accuracy"] else ""))
        if row["placebo"]:
            placebo[row["placebo"]["outcome"]] = row["placebo"]
    lines += [f"placebo: {difference_text(e)}" for e in placebo.values()]
    if found["sd"] is not None:
        least = ", ".join(f"{n} pairs {amount(key, value)}" for n, value in found["smallest"].items())
        lines.append(
            f"{key}: a paired difference has a standard deviation of {amount(key, found['sd'])} {unit(key)} between "
            f"bases. Smallest effect found with a power of 80 % (paired t-test at 5 %): {least}. An effect of 2 points "
            f"needs {found['seeds_for_two_points'] or 'more than 500'} pairs; one comparison can be decided from "
            f"{pairs_needed(1)} on."
        )
    return lines


def difference_text(row: Row) -> str:
    """`task/steps_frac +32.0 [25.1, 38.9] points, d = 4.1, n = 6`."""
    key = row["outcome"]
    text = f"{key} {with_interval(key, row['mean'], row['low'], row['high'])} {unit(key)}".rstrip()
    return text + (f", d = {row['d']:.1f}" if row["d"] is not None else "") + f", n = {row['n']}"


def close(study: str, folders: Sequence[Path], command: str) -> str:
    """Writes a report or a calibration into the first folder; returns its findings as text."""
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
