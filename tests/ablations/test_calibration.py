"""Calibrations of synthetic runs with a known answer."""

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import write_run

from ablations.compare.calibration import calibrate
from ablations.designs import read_arm
from ablations.read.runs import StudyError, load
from ablations.report.report import close_calibration

FREE, BOUND = "dapo@clip.high=5", "dapo@clip.high=0.1"
CONTROL = {"outcome": "task/steps_frac", "direction": "up", "steps": [1, 20], "doses": [BOUND, FREE]}
REGIME: dict[str, Any] = {
    "name": "made_up",
    "reference": FREE,
    "techniques": {"clip_higher": CONTROL},
}


def write(folder: Path, regime: dict[str, Any], steps_of: dict[str, float]) -> Path:
    """Six pairs, each on a base policy of its own; arm -> the step at which written steps take over."""
    kind: dict[str, Any] = {"study": "calibrate", "keys": {"regime": regime}, "steps": 20, "every": 5}
    for arm, step in steps_of.items():
        for seed in range(6):
            emergence = step + (seed % 2 if arm != FREE else 0)
            write_run(folder, read_arm(arm), seed, emergence=emergence, **kind)
    return folder / "calibrate"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write(tmp_path, REGIME, {FREE: 5, f"{FREE}@rollout.noise_stream=1": 5, BOUND: 15})


def test_an_extreme_setting_that_changes_the_named_outcome_admits_its_technique(runs: Path) -> None:
    found = calibrate(load(runs), REGIME, "eval/chain_sum/avg@4")
    (verdict,) = found["techniques"]
    assert verdict["admitted"], verdict["reason"]
    (dose,) = verdict["doses"]
    assert dose["arms"] == (FREE, BOUND)
    assert (dose["n"], found["bases"]) == (6, list("012345"))
    assert dose["mean"] > 0.2
    assert dose["d"] >= 2
    assert found["smallest"][6] > found["smallest"][12] > found["smallest"][20] > 0


@pytest.mark.parametrize(
    ("change", "arms", "reason"),
    [
        ({"direction": "down"}, {}, "but not down"),
        ({}, {BOUND: 5}, "does not change task/steps_frac by 2 standard deviations"),
        ({}, {f"{FREE}@rollout.noise_stream=1": 12}, "the placebo changes task/steps_frac as well"),
        ({"outcome": "task/unheard_of"}, {}, "no pair of runs logged task/unheard_of"),
    ],
)
def test_a_technique_is_not_admitted_where_its_control_fails(
    tmp_path: Path, change: dict[str, str], arms: dict[str, float], reason: str
) -> None:
    regime = {**REGIME, "techniques": {"clip_higher": {**CONTROL, **change}}}
    folder = write(tmp_path, regime, {FREE: 5, f"{FREE}@rollout.noise_stream=1": 5, BOUND: 15, **arms})
    (verdict,) = calibrate(load(folder), regime, "eval/chain_sum/avg@4")["techniques"]
    assert not verdict["admitted"]
    assert reason in verdict["reason"]


def test_a_calibration_writes_its_answer_and_an_unfinished_one_says_what_is_missing(runs: Path, tmp_path: Path) -> None:
    text = close_calibration([runs])
    assert "clip_higher: sensitive: " in text
    stored = json.loads((runs / "calibration.json").read_text())
    assert stored["techniques"][0]["admitted"] is True
    folder = write(tmp_path / "other", REGIME, {FREE: 5, BOUND: 15})
    with pytest.raises(StudyError, match=r"dapo@clip.high=5@rollout.noise_stream=1"):
        close_calibration([folder])


def test_where_studies_claim_accuracy_placebo_and_control_are_judged_on_it(tmp_path: Path) -> None:
    regime = {**REGIME, "accuracy": True}
    runs = write(tmp_path, regime, {FREE: 5, f"{FREE}@rollout.noise_stream=1": 5, BOUND: 15})
    (verdict,) = calibrate(load(runs), regime, "eval/chain_sum/avg@4")["techniques"]
    assert verdict["admitted"]  # by the written share
    # the bound does nothing to the synthetic accuracy
    assert verdict["accuracy_reason"].endswith("eval/chain_sum/avg@4")
    assert "by eval/chain_sum/avg@4" in close_calibration([runs])
