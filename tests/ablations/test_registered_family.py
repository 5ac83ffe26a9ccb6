"""What a study registered stays what it is judged by: its size, its shares of alpha, its seeds and their order."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import write_run

from ablations.commands.status import main as status
from ablations.compare.contrasts import Contrast, Effect, compare
from ablations.compare.effects import _judged, registered_effects
from ablations.compare.referee import referee
from ablations.compare.sequential import decisions, first_rejection, interval
from ablations.compare.statistics import sign_flip_p
from ablations.designs import Arm
from ablations.read.ledger import read_ledger
from ablations.read.registration import Family, Plan, Registered, as_tree, register
from ablations.read.run_ledger import ledger_of_study
from ablations.read.runs import load
from ablations.report.report import all_decided, make_report
from ablations.techniques import DAPO

METRIC = "eval/chain_sum/avg@4"
ON = Arm(DAPO)
OFF = {name: Arm(DAPO - {name}) for name in ("clip_higher", "dynamic_sampling")}


def study(home: Path, seeds: Sequence[int], shares: dict[str, float], **stopping: object) -> Plan:
    """Registers DAPO against DAPO without each technique of `shares`, a family each if their shares differ."""
    members = [Registered(t, t, {ON.name: 1.0, OFF[t].name: -1.0}, METRIC, "accuracy") for t in shares]
    families = tuple(Family(one.label, shares[one.label], (one,)) for one in members)
    if len({*shares.values()}) == 1:
        families = (Family("left out of DAPO", next(iter(shares.values())), tuple(members)),)
    arms = (ON.name, *(OFF[t].name for t in shares))
    plan = Plan("table1", METRIC, ON.name, arms, tuple(seeds), families=families, stopping=stopping)
    register(home, plan)
    return plan


def runs(folder: Path, seeds: Sequence[int], *techniques: str, **given: object) -> None:
    for seed in seeds:
        for arm in (ON, *(OFF[name] for name in techniques)):
            write_run(folder, arm, seed, **{"steps": 6, "every": 3, "seed_sd": 0.001, "effects": {}, **given})


def test_a_comparison_that_has_not_begun_counts_in_its_family(tmp_path: Path) -> None:
    gain = {"effects": {"clip_higher": 0.1}}
    for name, registered, verdict in (("alone", OFF.keys() - {"dynamic_sampling"}, "up"), ("two", OFF, "undecided")):
        plan = study(tmp_path / name / "table1", range(6), dict.fromkeys(registered, 0.05), pairs=6)
        runs(tmp_path / name, range(6), "clip_higher", **gain)
        effects = registered_effects(load(tmp_path / name), plan, ON.name, METRIC)
        assert effects[0].p == 2 / 64
        assert [effect.verdict for effect in effects] == [verdict, "at 0 of 6"][: len(registered)]
        (claim,) = (row["claim"] for row in referee(ledger_of_study([tmp_path / name / "table1"]), "claims")["changes"])
        assert claim["verdict"] == ("undecided" if verdict == "undecided" else "loss")  # of leaving it out


def test_a_study_goes_on_until_every_registered_comparison_is_decided(tmp_path: Path) -> None:
    home = tmp_path / "table1"
    study(home, range(12), dict.fromkeys(OFF, 0.05), until="decided", looks=(8, 12))
    runs(tmp_path, range(8), "clip_higher", effects={"clip_higher": 0.1})
    assert not all_decided([home])
    _, lines = make_report([home], tmp_path / "report", "report")
    assert "1 of 2 registered comparisons" in "\n".join(lines)


def test_decide_claims_what_the_report_decides(tmp_path: Path) -> None:
    """At the family's share of alpha, in the order of seeds, whichever side a technique is on."""
    home = tmp_path / "table1"
    study(home, range(12), {"clip_higher": 0.03, "dynamic_sampling": 0.02}, until="decided", looks=(8, 12))
    present = [seed for seed in range(12) if seed != 3]
    runs(tmp_path, present, "clip_higher", effects={"clip_higher": 0.1})
    answer = referee(ledger_of_study([home]), "claims")
    assert (answer["alpha"], answer["registered"]) == (0.03, True)
    (row,) = answer["changes"]
    assert (row["claim"]["verdict"], row["pairs"], row["action"], row["more_pairs"]) == ("undecided", 11, "more", 1)
    assert any("3 of 11 pairs" in note for note in answer["notes"])
    runs(tmp_path, [3], "clip_higher", effects={"clip_higher": 0.1})
    (row,) = referee(ledger_of_study([home]), "claims")["changes"]
    assert row["claim"] == {"verdict": "loss", "at_pairs": 8, "next_look": None}


def judged(differences: Sequence[float], looks: Sequence[int], seeds: Sequence[int] = ()) -> Effect:
    weights = {"a": 1.0, "b": -1.0}
    named = dict(zip(seeds or range(len(differences)), differences, strict=True))
    effect = compare(Contrast("f", "t", None, weights), {"a": named, "b": dict.fromkeys(named, 0.0)})
    family = Family("f", 0.05, (Registered("t", None, weights, METRIC, ""),))
    registered = tuple(seeds[: looks[0]] or range(looks[-1]))
    [row] = _judged(family, [effect], Plan("s", seeds=registered, stopping={"until": "decided", "looks": looks}))
    return row


GAIN = [0.02, 0.021, 0.022, 0.023, 0.024, 0.025, 0.026, 0.027]


@pytest.mark.parametrize("stopping", [{"pairs": 7}, None])
def test_a_study_that_looks_once_is_decided_by_its_registered_pairs_whichever_is_late(
    tmp_path: Path, stopping: dict[str, int] | None
) -> None:
    """Seven pairs registered, six of them up, and an eighth that was added and is up as well; seed 5 is down. Plans of
    earlier versions name no number of pairs."""
    home = tmp_path / "table1"
    plan = replace(study(home, range(7), {"clip_higher": 0.05}, pairs=7), stopping=stopping)
    (home / "study.json").write_text(json.dumps([{"at": "2026-11-24T00:00:00+00:00", "plan": as_tree(plan)}]))

    def verdicts() -> tuple[str, str]:
        (effect,) = registered_effects(load(home), plan, ON.name, METRIC)
        (row,) = referee(ledger_of_study([home]), "claims")["changes"]
        return effect.verdict, row["claim"]["verdict"]

    up, down = {"effects": {"clip_higher": 0.1}}, {"effects": {"clip_higher": -0.1}}
    runs(tmp_path, [0, 1, 2, 3, 4, 6, 7], "clip_higher", **up)
    assert verdicts() == ("at 6 of 7", "undecided")  # seven values are there, all of them up
    runs(tmp_path, [5], "clip_higher", **down)
    assert verdicts() == ("undecided", "undecided")


def test_pairs_that_are_added_on_the_same_base_policies_change_no_verdict() -> None:
    """Two seeds on each of six base policies, and six further seeds whose differences are the other way round."""
    weights = {"a": 1.0, "b": -1.0}
    differences = dict(enumerate([*([0.125] * 12), *([-1.0] * 6)]))
    base_of = {seed: str(seed % 6) for seed in differences}
    effect = compare(
        Contrast("f", "t", None, weights), {"a": differences, "b": dict.fromkeys(differences, 0.0)}, base_of
    )
    family = Family("f", 0.05, (Registered("t", None, weights, METRIC, ""),))
    [row] = _judged(family, [effect], Plan("s", seeds=tuple(range(12)), stopping={"pairs": 6}))
    assert (row.verdict, row.estimate.n, row.estimate.mean) == ("up", 6, 0.125)


def test_a_verdict_has_the_direction_of_the_look_that_gave_it() -> None:
    row = judged([*GAIN, -0.2, 0.01, -0.12, 0.01], (8, 12))
    assert row.estimate.mean < 0
    assert row.verdict == "up at 8 of 12"


def test_seeds_that_are_added_come_after_the_registered_ones_whatever_their_numbers() -> None:
    row = judged([*GAIN, -0.2, -0.2, -0.2, -0.2], (8, 12), [*range(20, 28), *range(4)])
    assert row.verdict == "up at 8 of 12"


@pytest.mark.parametrize("units", [45, 48])
def test_a_study_of_many_units_that_looks_once_decides(units: int, tmp_path: Path) -> None:
    """Beyond 44 values the test counts a group of flips; an effect of four standard deviations is among the largest."""
    values = 0.4 + 0.1 * np.random.default_rng(units).normal(size=units)
    row = judged(values.tolist(), (units,))
    assert (row.verdict, row.p, row.adjusted) == ("up", 2 / 2**12, 2 / 2**12)
    assert judged((-values).tolist(), (units,)).verdict == "down"
    nothing = judged((values - values.mean()).tolist(), (units,))
    assert (nothing.verdict, nothing.p) == ("undecided", 1.0)
    rows = [f"c,{pair},{value},0" for pair, value in enumerate(values)]
    (tmp_path / "ledger.csv").write_text("\n".join(["change,pair,with,without", *rows]) + "\n")
    once = replace(read_ledger(tmp_path / "ledger.csv"), looks=(units,))
    assert referee(once, "claims")["changes"][0]["claim"] == {"verdict": "gain", "at_pairs": units, "next_look": None}


def test_a_report_and_decide_judge_one_look_by_one_p() -> None:
    """Sixteen values whose exact p is just below the level, in the group of flips it is above."""
    rng = np.random.default_rng(3)
    close = next(x for x in (rng.normal(0.5, 1, 16) for _ in range(9999)) if 0.045 < sign_flip_p(x) <= 0.05
                 and not first_rejection(x, [16], 0.05))  # fmt: skip
    assert decisions([close], [16], 0.05) == [16]
    assert judged(close.tolist(), (16,)).verdict == "up"


def test_an_interval_has_what_no_look_rejects() -> None:
    assert interval([0.0] * 8, (8, 12)) == (0.0, 0.0)
    assert interval([0.01] * 5, (5, 12)) == (-np.inf, np.inf)  # five signs reject nothing at their share
    low, high = interval([*GAIN, -0.2, 0.01, -0.12, 0.01], (8, 12)) or (0, 0)
    assert 0.02 < low < high < 0.03  # of the first look, which rejects the mean of all
    assert interval([*([0.0, 0.001] * 4), 5.0, 5.001, 5.0, 5.001, 5.0, 5.001, 5.0, 5.001], (8, 16)) is None


def test_seeds_that_were_added_are_awaited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, shares = tmp_path / "table1", {"clip_higher": 0.05}
    study(home, range(6), shares, pairs=6)
    runs(tmp_path, range(6), "clip_higher")
    assert status([str(home)]) == 0
    study(home, range(9), shares, pairs=6)
    assert status([str(home)]) == 3
    assert "12 done, 6 missing" in capsys.readouterr().out
    results, _ = make_report([home], tmp_path / "report", "report")
    assert {seed for _, seed in results.missing} == {6, 7, 8}


def test_cells_are_packed_beside_what_an_interrupted_pack_has_left(tmp_path: Path) -> None:
    home, packed = tmp_path / "table1", tmp_path / "packed"
    study(home, range(6), {"clip_higher": 0.05}, pairs=6)
    runs(tmp_path, range(6), "clip_higher")
    packed.mkdir()
    (packed / "metrics.parquet").write_bytes(b"PAR1")
    (packed / "README.md").write_text("why this study\n")
    assert status([str(home), f"pack={packed}"]) == 0
    assert len(load(packed)) == 12
    assert status([str(home), f"pack={tmp_path / 'new'}"]) == 0
    assert json.loads((packed / "study.json").read_text()) == json.loads((home / "study.json").read_text())
