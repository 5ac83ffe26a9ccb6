"""What a fork takes from its run, what it compares, and what no arm of it can change: nothing is trained here."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ablations.designs import Design, read_arm
from ablations.files.layout import before_step
from ablations.files.record import config_text
from ablations.trainer import flatten
from dapo_lit.cli.config_tree import composed_tree
from dapo_lit.cli.fork import OWN, check_changes, continued, for_each_state, fork_families
from dapo_lit.config import ConfigError
from dapo_lit.config.identity import differences
from dapo_lit.runs.checkpoint_files import write_checkpoint
from dapo_lit.runs.resume import forked_from


@pytest.mark.parametrize(
    ("arm", "technique", "treated", "control"),
    [
        ("dapo-clip_higher", "clip_higher", "dapo", "dapo-clip_higher"),
        ("dapo+overlong_filtering", "overlong_filtering", "dapo+overlong_filtering", "dapo"),
        ("dapo@clip.high=0.5", None, "dapo@clip.high=0.5", "dapo"),
        ("dapo-clip_higher@clip.low=0.1", None, "dapo-clip_higher@clip.low=0.1", "dapo"),
        ("naive_grpo+clip_higher", None, "naive_grpo+clip_higher", "dapo"),
    ],
)
def test_a_technique_is_compared_with_minus_without_it_whichever_the_run_has_and_another_arm_minus_the_run(
    arm, technique, treated, control
):
    design = Design("fork", "dapo", (read_arm("dapo"), read_arm(arm)))
    study = SimpleNamespace(metric="rollout/accuracy", alpha=0.01)
    config = SimpleNamespace(fork=SimpleNamespace(horizon=4), own_study=study, last_step=9)
    (family,) = fork_families(design, config)  # type: ignore[arg-type]
    (one,) = family.contrasts
    assert (one.technique, one.weights) == (technique, {treated: 1.0, control: -1.0})
    assert (one.steps, one.outcome, family.alpha) == ((8, 9), "rollout/accuracy", 0.01)  # the last half of 6 to 9
    assert one.label == (technique or arm)


@pytest.mark.parametrize("horizon", [1, 2, 3, 5])
def test_the_window_is_the_last_half_of_the_steps_and_never_empty(horizon):
    study = SimpleNamespace(metric="rollout/accuracy", alpha=0.05)
    config = SimpleNamespace(fork=SimpleNamespace(horizon=horizon), own_study=study, last_step=9)
    design = Design("fork", "dapo", (read_arm("dapo"), read_arm("dapo-clip_higher")))
    (family,) = fork_families(design, config)  # type: ignore[arg-type]
    assert family.contrasts[0].steps == {1: (9, 9), 2: (9, 9), 3: (8, 9), 5: (7, 9)}[horizon]


@pytest.mark.parametrize(
    "setting",
    [
        "samples_per_prompt=8", "optimizer.betas=0.5", "optimizer.eps=0.1", "optimizer.weight_decay=0.5",
        "critic.lr=0.1", "family=mine", "task.max_response_tokens=5", "rollout.steps_ahead=1", "budget.steps=9",
        "policy.dtype=bfloat16",
    ],
)  # fmt: skip
def test_what_the_state_holds_or_the_samples_were_made_with_is_no_arm(setting):
    with pytest.raises(ConfigError, match=setting.partition("=")[0]):
        check_changes([read_arm("dapo"), read_arm(f"dapo@{setting}")])


@pytest.mark.parametrize(
    "setting", ["clip.high=0.5", "optimizer.lr=0.001", "reward.wrong_value=0", "rollout.temperature=0.7"]
)
def test_what_the_next_steps_are_made_with_is_an_arm(setting):
    check_changes([read_arm(f"dapo@{setting}")])


@pytest.fixture
def run(compose, tmp_path) -> Path:
    """The folder of a run with limits of its own."""
    folder = tmp_path / "single" / "dapo" / "seed_0"
    folder.mkdir(parents=True)
    config = compose("budget.tokens_generated=900", "budget.steps=77", "algorithm.clip.high=0.3")
    (folder / "config.yaml").write_text(config_text(config.model_dump(mode="json")))
    return folder


def fork_of(compose, run: Path, **keys: object) -> dict:
    """The composed tree of a fork from step 3."""
    tree = compose().model_dump(mode="json") | {"seed": 5, "study_name": "fork", "study": {"arms": None}}
    return tree | {"fork": {"run": str(run), "steps": [3], "horizon": 2}, **keys}


def test_a_fork_differs_from_its_run_in_its_noise_its_name_and_its_own_keys_only(compose, run):
    tree = fork_of(compose, run)
    found = continued(tree, ["+study=fork", f"fork.run={run}", "seed=5"])
    of_run = compose("budget.tokens_generated=900", "budget.steps=77", "algorithm.clip.high=0.3").model_dump(
        mode="json"
    )
    different = {key: new for key, (_, new) in differences(flatten(of_run), flatten(found)).items()}
    different = {key: value for key, value in different.items() if key.partition(".")[0] not in OWN}
    assert different == {"rollout.noise_stream": 5, "preflight": False, "budget.tokens_generated": None}
    assert found["study_name"] == "fork/single_dapo_seed_0/step_000003"
    assert found["study"]["bases"] == [of_run["task"]["base_seed"]]


@pytest.mark.parametrize(
    "typed", ["algorithm.clip.high=0.4", "trainer.strategy=fsdp", "budget.steps=9", "task=parity", "policy=tiny"]
)
def test_another_value_of_the_runs_own_settings_is_refused_and_the_same_is_not(compose, run, typed):
    with pytest.raises(ConfigError, match=typed.partition("=")[0]):
        continued(fork_of(compose, run), ["+study=fork", f"fork.run={run}", typed])
    continued(fork_of(compose, run), ["+study=fork", f"fork.run={run}", "algorithm.clip.high=0.3", "budget.steps=77"])
    found = continued(fork_of(compose, run), ["+study=fork", f"fork.run={run}", "trainer.threads=7"])
    assert found["trainer"]["threads"] == 7


def test_several_states_are_a_sweep_and_one_is_a_cell(run):
    before_step(run, 2).parent.mkdir()
    for step in (2, 4):
        before_step(run, step).touch()
    study = ["+study=fork", f"fork.run={run}"]
    assert for_each_state([*study, "-m"]) == [[*study, "-m", "fork.steps=[2]"], [*study, "-m", "fork.steps=[4]"]]
    assert for_each_state([*study, "fork.steps=[4]"]) == [[*study, "fork.steps=[4]"]]
    with pytest.raises(ConfigError, match=r"^fork\.steps=\[2, 4\]"):
        for_each_state(study)


def test_each_state_of_a_run_is_a_base_of_its_own(tmp_path):
    before_step(tmp_path, 2).parent.mkdir()
    for step in (2, 4):
        state = before_step(tmp_path, step)
        write_checkpoint(state, lambda draft, step=step: torch.save({"step": step}, draft), kept=None)
    found = {}
    for step in (2, 4):
        config = SimpleNamespace(fork=SimpleNamespace(run=str(tmp_path), steps=[step]))
        state, record = forked_from(config)  # type: ignore[arg-type]
        assert state == before_step(tmp_path, step)
        assert record["origin"] == {"run": str(tmp_path), "step": step, "state": record["base_weights"]}
        assert forked_from(config) == (state, record)  # type: ignore[arg-type]
        found[step] = record["base_weights"]
    assert found[2] != found[4]


def test_steps_of_a_fork_without_its_run_are_one_line():
    for line in (
        ["++fork.steps=[1]"],
        ["+study=placebo", "study.arm=dapo", "++fork.steps=[1]"],
        ["+study=fork", "fork.steps=[1]"],
    ):
        with pytest.raises(ConfigError, match=r"fork: .*\+study=fork fork\.run=FOLDER"):
            composed_tree(["+experiment=four_sums", *line])
