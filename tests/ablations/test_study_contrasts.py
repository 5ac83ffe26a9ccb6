"""Comparisons recover effects that were put in, and sick runs are called so."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from shipped import DESIGNS, design
from synthetic_runs import EFFECTS, write_run

from ablations.compare.contrasts import Contrast, compare, contrasts, pair
from ablations.designs import Arm, cube
from ablations.files.metrics_file import metrics_line
from ablations.read import guard, outcomes
from ablations.read.curves import band, curves_of_bases
from ablations.read.health import findings
from ablations.read.registration import Family, Plan, Registered, doubts, read_plan
from ablations.read.registration import register as register_plan
from ablations.read.run import Run
from ablations.read.runs import StudyError, load, read_run
from ablations.report.report import arms_section
from ablations.report.results import analyse
from ablations.techniques import DAPO, LADDER

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

CUBE = cube(LADDER)
ADDITIVE = {arm.name: {0: 0.4 + sum(EFFECTS[t] for t in arm.on)} for arm in CUBE}


def value(family: str, label: str, scores: dict[str, dict[int, float]], arms: tuple[str, ...]) -> float:
    found = next(c for c in contrasts(arms) if (c.family, c.label) == (family, label))
    estimate = compare(found, scores).estimate
    return estimate.mean


@pytest.mark.parametrize("study", ["factorial", "factorial_half"])
def test_main_effects_of_additive_techniques_are_what_was_put_in_and_interactions_are_none(study: str) -> None:
    arms = design(study).names
    for technique in LADDER:
        assert value("main effects", technique, ADDITIVE, arms) == pytest.approx(EFFECTS[technique])
    assert value("interactions", "overlong_filtering x clip_higher", ADDITIVE, arms) == pytest.approx(0)


def test_an_interaction_is_half_of_the_effect_with_the_other_on_minus_with_it_off() -> None:
    scores = {
        arm.name: {0: 0.1 * ({"clip_higher", "dynamic_sampling"} <= arm.on) + 0.05 * ("clip_higher" in arm.on)}
        for arm in CUBE
    }
    arms = design("factorial").names
    assert value("interactions", "clip_higher x dynamic_sampling", scores, arms) == pytest.approx(0.1 / 2)
    assert value("main effects", "clip_higher", scores, arms) == pytest.approx(0.05 + 0.1 / 2)


def test_what_a_change_is_worth_with_another_on_minus_off_is_a_difference_of_differences() -> None:
    arms = ("dapo", "dapo-dynamic_sampling", "a", "b")
    scores = {
        "dapo": {0: 0.5, 1: 0.4},
        "a": {0: 0.6, 1: 0.5},
        "dapo-dynamic_sampling": {0: 0.3, 1: 0.3},
        "b": {0: 0.35, 1: 0.3},
    }
    one = pair("mine", "(dapo - dapo-dynamic_sampling) - (a - b)", arms)
    # (0.5 - 0.3) - (0.6 - 0.35) and (0.4 - 0.3) - (0.5 - 0.3)
    assert compare(one, scores).differences == pytest.approx((-0.05, -0.1))
    assert one.pair is None
    assert pair("mine", "a - b", arms).pair == ("a", "b")


@pytest.mark.parametrize(
    "text", ["a", "a - c", "(a - b) - (a - c)", "(a - b) - (a - dapo)", "(a - b) - (b - a)", "a - a",
             "(a - b) - (c - d) - (a - b)"],
)  # fmt: skip
def test_a_comparison_that_names_no_two_or_four_arms_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="arms"):
        pair("mine", text, ("a", "b", "dapo"))


@pytest.mark.parametrize("study", DESIGNS)
def test_the_weights_of_a_comparison_add_up_to_nothing(study: str) -> None:
    made = design(study)
    for contrast in contrasts(made.names, made.reference):
        assert len(contrast.weights) > 1
        assert sum(contrast.weights.values()) == pytest.approx(0)


def test_only_seeds_that_both_arms_have_are_compared() -> None:
    contrast = Contrast("f", "a - b", None, {"a": 1.0, "b": -1.0})
    result = compare(contrast, {"a": {0: 0.5, 1: 0.6, 2: 9.0}, "b": {1: 0.5, 0: 0.5, 3: -9.0}})
    assert result.seeds == (0, 1)
    assert result.differences == pytest.approx((0, 0.1))
    assert compare(contrast, {"a": {0: 1.0}}).estimate.n == 0


def test_base_policies_are_the_units() -> None:
    names = ["dapo", "dapo-clip_higher", "dapo@clip.high=0.5"]
    scores = {"dapo": {s: 0.5 + 0.01 * (s % 8) for s in range(16)}}
    scores |= {name: {s: v - 0.1 - 0.001 * s for s, v in scores["dapo"].items()} for name in names[1:]}
    found = contrasts(names)
    left_out, settings = (compare(contrast, scores, {s: str(s % 8) for s in range(16)}) for contrast in found)
    assert settings.p == left_out.p == 2 / 2**8
    assert left_out.by_base == pytest.approx({str(base): 0.104 + 0.001 * base for base in range(8)})
    assert left_out.units == "base policies"
    one = compare(found[0], scores, dict.fromkeys(range(16), "models/mine"))
    assert (one.p, one.by_base) == (2 / 2**16, {})
    assert one.units == "runs of one base policy, of which it speaks"


def test_a_base_policy_is_told_by_its_weights_or_by_the_file_beside_packed_cells() -> None:
    def base(**record: str) -> str:
        return Run(Path(), "s", "dapo", 3, "finished", record, {"task": {"base_seed": 4}}, pd.DataFrame()).base

    assert base() == "4"
    assert base(base_weights="e1e55078930db1f2") == "4 (e1e55078)"
    packed = outcomes.bases(load(EXPERIMENTS / "table1_joint" / "runs"))
    assert [packed[seed] for seed in (0, 3, 6, 11)] == ["4 (machine 1)"] * 2 + ["4 (machine 2)", "6 (machine 2)"]


def test_the_band_of_a_curve_is_over_base_policies() -> None:
    steps = [pd.Series(values, index=[1, 2]) for values in ([1.0, 2.0], [3.0, 4.0], [8.0, 6.0])]
    found = band(curves_of_bases(steps, ["a", "a", "b"]))
    assert found[["mean", "n"]].to_numpy().tolist() == [[5.0, 2], [4.5, 2]]  # (2 + 8) / 2, (3 + 6) / 2
    assert curves_of_bases(steps, ["a"] * 3) == steps


def test_the_ladder_of_table_1_is_analysed_with_its_six_base_policies() -> None:
    """The six means are those that an independent computation from the raw cells gives (points)."""
    runs = load(EXPERIMENTS / "table1_joint" / "runs")
    scores, base_of = outcomes.scores(runs, "eval/joint/avg@2"), outcomes.bases(runs)
    found = {
        c.technique: compare(c, scores, base_of) for c in contrasts(runs.arms, "naive_grpo") if c.family == "ladder"
    }
    expected = {
        "soft_overlong_punishment": (-6.4, -10.3, -2.5),
        "token_level_loss": (7.7, 3.0, 12.5),
        "dynamic_sampling": (3.2, 1.3, 5.2),
    }
    for technique, numbers in expected.items():
        estimate = found[technique].estimate
        assert estimate.n == 6
        assert (estimate.mean, estimate.low, estimate.high) == pytest.approx([x / 100 for x in numbers], abs=6e-4)


def test_runs_are_compared_on_their_last_points_and_on_the_last_evaluation_alone_where_it_has_more_samples(
    tmp_path: Path,
) -> None:
    """Eight evaluations after step 0, of which a third, two, are averaged; forty steps, of which a tenth."""
    usual = read_run(write_run(tmp_path / "usual", steps=40, every=5))
    final = read_run(write_run(tmp_path / "final", steps=40, every=5, keys={"evaluation.final_samples": 32}))
    key = "eval/chain_sum/avg@4"
    assert outcomes.outcome(usual, key) == pytest.approx(usual.series(key).iloc[-2:].mean())
    assert outcomes.outcome(final, key) == usual.series(key).iloc[-1] != usual.series(key).iloc[-2]
    for run in (usual, final):
        assert outcomes.outcome(run, "rollout/entropy") == pytest.approx(run.series("rollout/entropy").iloc[-4:].mean())


def test_a_run_without_the_large_evaluation_that_ends_it_has_no_outcome(tmp_path: Path) -> None:
    """Steps 0, 7, 14, ... are evaluated, and step 40 is not."""
    path = write_run(tmp_path, steps=40, every=7, keys={"evaluation.final_samples": 32})
    assert outcomes.outcome(read_run(path), "eval/chain_sum/avg@4") is None


def test_on_an_axis_of_tokens_the_kth_points_of_all_seeds_are_averaged() -> None:
    table = band([pd.Series([4.0, 2.0], index=[10.0, 30.0]), pd.Series([2.0, 0.0], index=[12.0, 31.0])])
    assert table[["x", "mean", "n"]].to_numpy().tolist() == [[11, 3, 2], [30.5, 1, 2]]


def sick(path: Path, **change: float | list[float]) -> list[str]:
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for key, values in change.items():
        for i, row in enumerate(rows[1:]):
            row[key.replace("__", "/")] = values if isinstance(values, float) else values[min(i, len(values) - 1)]
    (path / "metrics.jsonl").write_text("".join(map(metrics_line, rows)))
    return findings(read_run(path))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rollout__entropy": [0.4] * 20 + [0.001] * 20}, "entropy collapsed"),
        ({"rollout__entropy": [0.2] * 20 + [1.5] * 20}, "entropy too high"),
        ({"rollout__truncated_frac": 0.16}, "truncated"),
        ({"rollout__groups_mixed_frac": [0.5] * 20 + [0.0] * 20}, "mixed groups"),
        ({"optim__grad_norm": [0.5] * 20 + [50.0] + [0.5] * 19}, "gradient spikes"),
        ({"reward__verifier_error_frac": [0.0] * 5 + [0.2] + [0.0]}, "verifier errors"),
        ({"reward__length_penalty": 0.0}, "soft_overlong_punishment"),
        ({"sampling__tokens_filtered_frac": 0.0}, "dynamic_sampling"),
    ],
)
def test_each_sickness_is_found(tmp_path: Path, change: dict[str, float | list[float]], word: str) -> None:
    path = write_run(tmp_path)
    assert findings(read_run(path)) == []
    assert any(word in finding for finding in sick(path, **change))


def test_a_run_that_ends_below_its_base_policy_is_counted_in_its_arm(tmp_path: Path) -> None:
    key = "eval/chain_sum/avg@4"
    for seed, ends in enumerate((0.05, 0.9, 0.04)):
        path = write_run(tmp_path, seed=seed)
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for row in rows:
            row |= {key: 0.1 if row["step"] == 0 else ends} if key in row else {}
        (path / "metrics.jsonl").write_text("".join(map(metrics_line, rows)))
    write_run(tmp_path, Arm(DAPO - {"clip_higher"}))
    (table,) = (part for part in arms_section(analyse(load(tmp_path))) if getattr(part, "name", "") == "outcomes")
    shown = {row[0]: row[-1] for row in table.rows}
    assert shown == {"dapo": "2 of 3", "dapo-clip_higher": "0 of 1"}


def test_symptoms_are_of_the_first_and_the_last_tenth(tmp_path: Path) -> None:
    """Of forty steps the first four and the last four, neither one more nor one less."""
    found = sick(
        write_run(tmp_path), rollout__entropy=[1.0, 1.0, 1.0, 5.0, 9.0, *[9.0] * 30, 9.0, 0.01, 0.01, 0.01, 0.05]
    )
    assert ["2.000 to 0.0200 nats" in text for text in found if "entropy" in text] == [True]


def test_a_plan_takes_further_seeds_and_nothing_else_and_is_not_changed_by_hand(tmp_path: Path) -> None:
    contrast = Registered("a - b", None, {"a": 1.0, "b": -1.0}, "rollout/entropy", "entropy", "up", (2, 8))
    plan = Plan("mine", metric="rollout/entropy", seeds=(0, 1), families=(Family("settings", 0.05, (contrast,)),))
    register_plan(tmp_path, replace(plan, alpha=0.01))
    register_plan(tmp_path, plan)  # no run has started
    assert read_plan(tmp_path) == (plan, [])
    (tmp_path / "a" / "seed_0").mkdir(parents=True)
    (tmp_path / "a" / "seed_0" / "run.json").touch()  # a run has started
    with pytest.raises(StudyError, match=r"metric .*rollout/entropy.*rollout/accuracy"):
        register_plan(tmp_path, replace(plan, metric="rollout/accuracy"))
    with pytest.raises(StudyError, match="families"):
        register_plan(tmp_path, replace(plan, families=()))
    register_plan(tmp_path, replace(plan, seeds=(0, 1, 2)))
    first, edits = read_plan(tmp_path)
    assert first == plan
    assert [edit.split(" at ")[0] for edit in edits] == ["seeds was changed"]
    file = tmp_path / "study.json"
    file.write_text(file.read_text().replace('"up"', '"down"', 1))
    with pytest.raises(StudyError, match="changed by hand"):
        read_plan(tmp_path)


def test_the_arms_of_a_seed_must_share_the_weights_of_their_base_policy(tmp_path: Path) -> None:
    def write(arm: Arm, seed: int, weights: str | None) -> None:
        file = write_run(tmp_path, arm, seed) / "run.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"base_weights": weights}))

    dapo, without = Arm(DAPO), Arm(DAPO - {"clip_higher"})
    for arm, seed, weights in ((dapo, 0, "a"), (without, 0, "a"), (dapo, 1, "b"), (without, 1, "b"), (dapo, 2, None)):
        write(arm, seed, weights)
    assert guard.refusals(load(tmp_path)) == []
    write(without, 2, "a")
    assert guard.refusals(load(tmp_path)) == []  # an older run has recorded none
    for arm, weights in ((dapo, "a"), (without, "b")):
        write(arm, 3, weights)
    (reason,) = guard.refusals(load(tmp_path))
    assert reason.startswith("dapo/seed_3 and dapo-clip_higher/seed_3: ")
    assert "two sets of weights" in reason


def test_the_base_seed_may_follow_the_seed_but_nothing_else_may(tmp_path: Path) -> None:
    write_run(tmp_path, Arm(DAPO), 0)
    write_run(tmp_path, Arm(DAPO), 1)
    assert guard.refusals(load(tmp_path)) == []
    write_run(tmp_path, Arm(DAPO), 2, keys={"algorithm.epochs": 2})
    assert guard.refusals(load(tmp_path)) == ["dapo/seed_0 and dapo/seed_2 differ in algorithm.epochs"]


def test_a_plan_of_after_the_first_run_of_a_pilot_and_of_other_code_is_marked(tmp_path: Path) -> None:
    write_run(tmp_path)
    study, runs = tmp_path / "table1", load(tmp_path).runs
    assert "No plan" in doubts(study, runs)[0]
    register_plan(study, Plan("table1"))
    (late,) = doubts(study, runs)
    assert "after the first run" in late
    (study / "study.json").unlink()
    register_plan(study, Plan("table1", pilot=True), code={"code_hash": "of the plan"})
    pilot, other, late = doubts(study, runs)
    assert ("pilot" in pilot, "of the plan" in other) == (True, True)
