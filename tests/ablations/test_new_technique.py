"""A technique registered as a sixth goes through every study, report, figure and guard, and changes no older study."""

import json
from pathlib import Path
from typing import Any

import pytest
from shipped import DESIGNS, design
from sixth_technique import MASK
from synthetic_runs import EFFECTS, write_study

from ablations.commands.report import main as report
from ablations.commands.status import main as status
from ablations.techniques import REGISTER, Technique

SIXTH = MASK.switch
SMALL: dict[str, Any] = {"steps": 6, "every": 3, "questions": 8}


@pytest.fixture
def sixth(monkeypatch: pytest.MonkeyPatch) -> Technique:
    monkeypatch.setitem(REGISTER, SIXTH, MASK)
    monkeypatch.setitem(EFFECTS, SIXTH, 0.07)
    return MASK


@pytest.mark.parametrize("name", [*DESIGNS, "add_one_in"])
def test_it_joins_the_studies_that_vary_every_technique_and_no_other(name: str, monkeypatch: pytest.MonkeyPatch):
    before = design(name)
    monkeypatch.setitem(REGISTER, SIXTH, MASK)
    after = design(name)
    assert len(set(after.names)) == len(after.names)
    added = {
        "leave_one_out": {"dapo+low_entropy_mask"},
        "sizes": {"dapo+low_entropy_mask"},
        "add_one_in": {"naive_grpo+low_entropy_mask"},
        "factorial": {arm.name for arm in after.arms if SIXTH in arm.on},
        "factorial_half": {arm.name for arm in after.arms if SIXTH in arm.on},
    }
    assert set(after.names) - set(before.names) == added.get(name, set())
    if name != "factorial_half":  # the half of another cube
        assert set(before.names) <= set(after.names)
    assert (f"algorithm.techniques.{SIXTH}" in after.declared) == (name in added)
    for arm in after.arms:
        assert arm.values[f"algorithm.techniques.{SIXTH}"] == (SIXTH in arm.on)


def test_its_effect_is_in_the_report_of_a_study_that_varies_it(tmp_path: Path, sixth: Technique):
    folder = write_study(tmp_path, "leave_one_out", (0, 1), seed_sd=0.001, **SMALL)
    assert status([str(folder)]) == 0
    assert report([str(folder)]) == 0
    results = json.loads((folder / "report" / "report.json").read_text())
    own = [c for c in results["comparisons"] if c["contrast"]["technique"] == SIXTH]
    assert [c["estimate"]["mean"] for c in own] == [pytest.approx(0.07, abs=0.03)]
    assert SIXTH in results["exercised"]
    assert f"{MASK.label} (added)" in {row["comparison"] for row in results["tables"]["effects"]}
