"""The answer of a calibration: what a regime can tell."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dapo_lit.study.compare.calibration import PLACEBO, Calibration, Effect, calibrate
from dapo_lit.study.compare.decision import pairs_needed
from dapo_lit.study.read.outcomes import amount, bases, primary_metric, unit
from dapo_lit.study.read.registration import read_plan
from dapo_lit.study.read.runs import Runs, StudyError, load
from dapo_lit.study.report.document import Table, bullets
from dapo_lit.study.report.evaluation_section import evaluation_cost, levels


def regime_of(runs: Runs) -> Mapping[str, Any]:
    """The section `regime` of the runs' configs.

    Raises:
        StudyError: the runs belong to no regime.
    """
    regime = next((run.config.get("regime") for run in runs if run.config.get("regime")), None)
    if regime is None:
        raise StudyError("these runs belong to no regime (+regime=NAME)")
    return dict(regime)


def close_calibration(folders: Sequence[Path]) -> str:
    """Writes calibration.json and calibration.md into the first folder; returns the answer and where it is.

    Raises:
        StudyError: cells are missing, or the runs belong to no regime.
    """
    runs, (plan, _) = load(*folders), read_plan(folders[0])
    found = calibrate(runs, regime_of(runs), primary_metric(runs, plan.metric if plan else None))
    page, evaluation = folders[0] / "calibration.md", evaluation_noise(runs.usable, found)
    tree = {**found.as_json(), "evaluation": evaluation}
    (folders[0] / "calibration.json").write_text(json.dumps(tree, indent=1) + "\n")
    page.write_text(calibration_page(found, evaluation))
    return "\n".join([*_answers(found), f"calibration: {folders[0] / 'calibration.json'}\npage: {page}"])


def _answers(found: Calibration) -> list[str]:
    """One sentence a technique."""
    return [
        f"{v.technique}: {'can be told apart here' if v.admitted else 'phenomenon absent'}: {v.reason}"
        + (f" ({effect_text(v.doses[-1])})" if v.doses else "")
        + (f"; by {found.metric}: {v.accuracy_reason or 'yes'}" if v.accuracy_reason is not None else "")
        + (f" ({effect_text(v.accuracy)})" if v.accuracy else "")
        for v in found.techniques
    ]


def effect_text(effect: Effect) -> str:
    """`task/steps_frac +32.0 [25.1, 38.9] points, d = 4.1, n = 6`."""
    key = effect.outcome
    text = f"{key} {amount(key, effect.mean, signed=True)}"
    if effect.low is not None:
        text += f" [{amount(key, effect.low, signed=True)}, {amount(key, effect.high, signed=True)}]"
    text = f"{text} {unit(key)}".rstrip()
    return text + (f", d = {effect.d:.1f}" if effect.d is not None else "") + f", n = {effect.n}"


def evaluation_noise(runs: Runs, found: Calibration) -> dict[str, float | None]:
    """The last evaluation's share of the placebo's variance between pairs, and all evaluations' share of the time."""
    pair = (found.reference + PLACEBO, found.reference)
    shared = set.intersection(*({run.seed for run in runs.of(arm)} for arm in pair))
    base_of = {seed: base for seed, base in bases(runs).items() if seed in shared}
    both = levels(runs, pair, base_of, found.metric.split("/")[1]) if found.metric.startswith("eval/") else None
    return {"variance_share": both.evaluation_share if both else None, "time_share": evaluation_cost(runs)}


def calibration_page(found: Calibration, evaluation: Mapping[str, float | None]) -> str:
    """The one-page answer in Markdown."""
    key, size = found.metric, f"{len(found.seeds)} seeds on {len(found.bases)} base policies, {found.steps} steps"
    phenomena = [
        [p.name, "present" if p.present else "absent", p.metric, f"{p.first:.3g}", f"{p.last:.3g}", p.arm]
        for p in found.phenomena
    ]
    doses = [[v.technique, e.arms[0], e.arms[1], effect_text(e)] for v in found.techniques for e in v.doses]
    placebo = {v.placebo.outcome: v.placebo for v in found.techniques if v.placebo}
    doses += [["placebo", *e.arms, effect_text(e)] for e in placebo.values()]
    parts = [
        f"# What the regime `{found.regime}` can tell",
        f"{size}. Effects are paired by seed; d is their mean over their standard deviation between bases.",
        bullets([f"**{line.partition(':')[0]}**:{line.partition(':')[2]}" for line in _answers(found)]),
        "## Phenomena, in the arm that shows each most",
        Table("phenomena", "", ["phenomenon", "", "metric", "first", "last", "arm"], phenomena).markdown(),
        "## Doses and placebo",
        Table("doses", "", ["", "arm", "minus", "effect with 95 % t-interval"], doses).markdown(),
        "## What a number of pairs can see",
    ]
    if found.sd is not None:
        least = ", ".join(f"{n} pairs {amount(key, value)}" for n, value in found.smallest.items())
        needed = found.seeds_for_two_points or "more than 500"
        parts.append(
            f"A paired difference in `{key}` has a standard deviation of {amount(key, found.sd)} {unit(key)} between "
            f"bases. Smallest effect found with a power of 80 % (paired t-test at 5 %): {least}. "
            f"An effect of 2 points needs {needed} pairs; one comparison can be decided from {pairs_needed(1)} on."
        )
    if (share := evaluation["variance_share"]) is not None:
        cost = evaluation["time_share"]
        took = "" if cost is None else f"; all evaluations took {cost:.0%} of the time"
        parts.append(f"Sampling the last evaluation makes {share:.0%} of the placebo's variance between bases{took}.")
    return "\n\n".join(parts) + "\n"
