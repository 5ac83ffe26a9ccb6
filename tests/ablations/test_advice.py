"""Whether a technique can act in a run, and which studies the run resembles."""

from dataclasses import replace

import pytest

from ablations.compare.advice import Found, advice, findings, resembling, updates_of
from ablations.techniques import DAPO, REGISTER

SETTINGS = {
    "num_prompts": 8, "minibatch_prompts": 2, "epochs": 3, "old_logprobs": "recompute", "clip.low": 0.2,
    "clip.high": 0.28, "techniques.clip_higher": True,
}  # fmt: skip


def rows(**metrics):
    """Two steps with these metrics, behind a row before training that must not count."""
    named = {key.replace("__", "/"): value for key, value in metrics.items()}
    return [{"step": 0} | dict.fromkeys(named, 1e9), {"step": 1} | named, {"step": 2} | named]


def found(n=3, technique="dynamic_sampling", **measured):
    named = {key.replace("__", "/"): value for key, value in measured.items()}
    return Found(technique, f"{n} bases", "folder", named, n, "up", 5.0, 4.0, 6.0, 1.0)


def test_a_study_of_the_runs_own_regime_and_algorithm_comes_before_those_with_similar_amounts():
    """Their amounts are far from the run's. Of two as large, DAPO's is the one that leaves the technique out of it."""
    away = {"rollout/groups_mixed_frac": 0.9, "rollout/groups_all_wrong_frac": 0.01}
    near = {"rollout/groups_mixed_frac": 0.5, "rollout/groups_all_wrong_frac": 0.3}
    studies = [
        Found("dynamic_sampling", study, "folder", measured, n, "up", 5.0, 4.0, 6.0, 1.0)
        for study, measured, n in (
            ("factorial, parity", near, 24), ("factorial, joint", away, 12), ("left out, joint", away, 12),
            ("left out, joint, 16 updates a step", away, 12),
        )
    ]  # fmt: skip
    measured = rows(rollout__groups_mixed_frac=0.5, rollout__groups_all_wrong_frac=0.3)
    dapo = {f"techniques.{name}": name in DAPO for name in REGISTER} | {"regime": "joint"}
    answer = of("dynamic_sampling", measured, dapo, studies)
    assert [each.study for each in answer.like] == ["left out, joint", "factorial, joint", "factorial, parity"]
    assert answer.regime == "joint"
    grpo = dapo | dict.fromkeys((f"techniques.{name}" for name in DAPO), False)
    assert of("dynamic_sampling", measured, grpo, studies).like[0].study == "factorial, joint"
    elsewhere = of("dynamic_sampling", measured, dapo | {"regime": None}, studies)
    assert ([each.study for each in elsewhere.like], elsewhere.regime) == (["factorial, parity"], None)


def test_the_studies_quoted_for_readmes_run_are_those_of_its_regime():
    dapo = {f"techniques.{name}": name in DAPO for name in REGISTER} | {"regime": "joint"}
    measured = rows(rollout__groups_mixed_frac=0.5, rollout__length_cv=0.9)
    quoted = [of(t, measured, dapo, findings()).like[0].study for t in ("dynamic_sampling", "token_level_loss")]
    assert quoted == ["factorial, joint"] * 2


def of(technique, rows, settings=SETTINGS, known=()):
    return advice(technique, rows, settings, known)


@pytest.mark.parametrize(("mixed", "acts"), [(0.89, True), (0.91, False)])
def test_a_technique_acts_from_the_threshold_of_its_register_on(mixed, acts):
    assert of("dynamic_sampling", rows(rollout__groups_mixed_frac=mixed)).acts is acts


def test_a_number_that_is_shown_as_the_one_needed_is_enough():
    answer = of("dynamic_sampling", rows(rollout__groups_mixed_frac=(0.8 + 1.0) / 2))  # 1 - 0.9 is below 0.1
    assert answer.acts
    assert "10.0% (needs 10.0%)" in answer.amount
    assert of("token_level_loss", rows(rollout__length_cv=0.4999)).acts
    assert not of("dynamic_sampling", rows(rollout__groups_mixed_frac=0.9006)).acts


def test_a_switch_that_is_on_is_judged_by_the_bound_that_it_would_have_without():
    past = rows(clip__high_frac_last_epoch=0.0, clip__symmetric_high_frac_last_epoch=0.02)
    assert of("clip_higher", past).acts
    assert not of("clip_higher", past, SETTINGS | {"techniques.clip_higher": False}).acts
    assert updates_of(SETTINGS) == 12


def test_what_a_technique_lowers_is_read_in_the_first_step_of_a_run_in_which_it_is_on():
    truncated = [{"step": step, "rollout/truncated_frac": share} for step, share in ((0, 1), (1, 0.13), (2, 0.0))]
    on, off = ({"techniques.soft_overlong_punishment": value} for value in (True, False))
    answer = of("soft_overlong_punishment", [*truncated, {"step": 3, "rollout/truncated_frac": 0.0}] * 9, on)
    assert answer.acts
    assert "13.0% (needs 2.0%)" in answer.amount
    assert of("soft_overlong_punishment", truncated[2:] * 9, off).acts is False
    assert of("soft_overlong_punishment", truncated[2:] * 9, on).acts is None  # a log without its first step
    assert of("soft_overlong_punishment", truncated[1:] + truncated[2:] * 9, off).acts is False


@pytest.mark.parametrize(("penalty", "acts"), [(-0.3, True), (-0.01, False), (None, False)])
@pytest.mark.parametrize("on", [True, False])
def test_a_length_penalty_acts_in_its_buffer_where_nothing_is_truncated(penalty, acts, on):
    seen = rows(rollout__truncated_frac=0.0, reward__length_penalty=penalty)
    answer = of("soft_overlong_punishment", seen, {"techniques.soft_overlong_punishment": on})
    assert answer.acts is acts
    assert ("is 0.300" in answer.amount) is (penalty == -0.3)


def test_settings_that_make_a_technique_idle_are_named_before_any_measurement(monkeypatch):
    def one_epoch(get):
        return "every ratio is 1" if get("epochs") == 1 else None

    monkeypatch.setitem(REGISTER, "clip_higher", replace(REGISTER["clip_higher"], idle=(one_epoch,)))
    seen = rows(clip__symmetric_high_frac_last_epoch=0.02)
    assert of("clip_higher", seen).acts
    answer = of("clip_higher", seen, SETTINGS | {"epochs": 1})
    assert (answer.acts, answer.amount) == (False, "every ratio is 1")


def test_what_was_not_logged_is_unknown():
    assert {of(technique, [{"step": 1}]).acts for technique in REGISTER} == {None}


def test_a_run_resembles_studies_within_a_factor_of_two_in_every_metric_most_bases_first():
    wide, near, far = found(12, a=0.19, b=0.1), found(3, a=0.1, b=0.1), found(20, a=0.21, b=0.1)
    measured = {"a": 0.1, "b": 0.1}
    assert resembling("dynamic_sampling", measured, [far, near, wide]) == (wide, near)
    assert resembling("clip_higher", measured, [far, near, wide]) == ()
    assert resembling("dynamic_sampling", {"a": 0.1}, [near]) == ()  # b was not logged
    tiny = found(a=0.004, b=0.1)
    assert resembling("dynamic_sampling", {"a": 0.0, "b": 0.1}, [tiny]) == (tiny,)  # both next to nothing


def test_a_run_in_which_a_technique_cannot_act_resembles_no_study():
    few = {"rollout__groups_mixed_frac": 0.95, "rollout__groups_all_wrong_frac": 0.05}
    known = [found(**few)]
    assert of("dynamic_sampling", rows(**few), known=known).like == ()
    more = {"rollout__groups_mixed_frac": 0.89, "rollout__groups_all_wrong_frac": 0.05}
    assert of("dynamic_sampling", rows(**more), known=known).like == tuple(known)


def test_the_length_penalty_of_groups_that_are_all_wrong_is_a_caution_unless_dynamic_sampling_drops_them():
    measured = {"rollout__truncated_frac": 0.1, "rollout__groups_all_wrong_frac": 0.33}
    seen = rows(**measured, sampling__groups_wrong_with_advantages_frac=0.25)
    off, on = {"techniques.soft_overlong_punishment": False}, {"techniques.soft_overlong_punishment": True}
    filtered = {"techniques.dynamic_sampling": True}
    assert "25.0%" in of("soft_overlong_punishment", seen, on).caution
    assert "33.0%" in of("soft_overlong_punishment", seen, off).caution
    assert "33.0%" in of("soft_overlong_punishment", seen, {}).caution  # a log whose settings are not known
    assert of("soft_overlong_punishment", seen, off | filtered).caution == ""
    spared = rows(**measured, sampling__groups_wrong_with_advantages_frac=0.0)
    assert of("soft_overlong_punishment", spared, on).caution == ""
    assert of("overlong_filtering", seen, on).caution == ""


def test_every_finding_measured_what_the_register_compares():
    for each in findings():
        condition = REGISTER[each.technique].condition
        assert set(each.measured) == {condition.metric, *condition.like}
        assert each.low <= each.points <= each.high
    assert {each.technique for each in findings()} == set(REGISTER)


def test_no_threshold_excludes_a_study_that_decided_an_effect():
    for each in findings():
        if each.verdict in ("up", "down"):
            condition = REGISTER[each.technique].condition
            assert condition.measured(each.measured[condition.metric])[0], each
