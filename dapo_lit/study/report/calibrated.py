"""The end of a calibration: calibration.json, and one sentence a technique."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dapo_lit.study.compare.calibration import FILE, Calibration, Difference, calibrate
from dapo_lit.study.compare.decision import pairs_needed
from dapo_lit.study.read.outcomes import amount, primary_metric, unit
from dapo_lit.study.read.registration import read_plan
from dapo_lit.study.read.runs import Runs, StudyError, load


def close_calibration(folders: Sequence[Path]) -> str:
    """Writes calibration.json into the first folder; returns its answers and where it is.

    Raises:
        StudyError: cells are missing, or the runs belong to no regime.
    """
    runs, (plan, _) = load(*folders), read_plan(folders[0])
    found = calibrate(runs, _regime(runs), primary_metric(runs, plan.metric if plan else None))
    (folders[0] / FILE).write_text(json.dumps(asdict(found), indent=1) + "\n")
    return "\n".join([*_answers(found), f"calibration: {folders[0] / FILE}"])


def _regime(runs: Runs) -> Mapping[str, Any]:
    regime = next((run.config.get("regime") for run in runs if run.config.get("regime")), None)
    if regime is None:
        raise StudyError("these runs belong to no regime (+regime=NAME)")
    return dict(regime)


def _answers(found: Calibration) -> list[str]:
    """One sentence a technique, the placebo on each outcome, and the effects that a number of pairs can show."""
    key = found.metric
    lines = [
        f"{v.technique}: {'sensitive' if v.admitted else 'not sensitive'}: {v.reason}"
        + "".join(f"; {e.arms[0]} minus {e.arms[1]}: {difference_text(e)}" for e in v.doses)
        + (f"; by {key}: {v.accuracy_reason or 'yes'}" if v.accuracy_reason is not None else "")
        + (f" ({difference_text(v.accuracy)})" if v.accuracy else "")
        for v in found.techniques
    ]
    placebo = {v.placebo.outcome: v.placebo for v in found.techniques if v.placebo}
    lines += [f"placebo: {difference_text(e)}" for e in placebo.values()]
    if found.sd is not None:
        least = ", ".join(f"{n} pairs {amount(key, value)}" for n, value in found.smallest.items())
        lines.append(
            f"{key}: a paired difference has a standard deviation of {amount(key, found.sd)} {unit(key)} between "
            f"bases. Smallest effect found with a power of 80 % (paired t-test at 5 %): {least}. An effect of 2 points "
            f"needs {found.seeds_for_two_points or 'more than 500'} pairs; one comparison can be decided from "
            f"{pairs_needed(1)} on."
        )
    return lines


def difference_text(effect: Difference) -> str:
    """`task/steps_frac +32.0 [25.1, 38.9] points, d = 4.1, n = 6`."""
    key = effect.outcome
    text = f"{key} {amount(key, effect.mean, signed=True)}"
    if effect.low is not None:
        text += f" [{amount(key, effect.low, signed=True)}, {amount(key, effect.high, signed=True)}]"
    text = f"{text} {unit(key)}".rstrip()
    return text + (f", d = {effect.d:.1f}" if effect.d is not None else "") + f", n = {effect.n}"
