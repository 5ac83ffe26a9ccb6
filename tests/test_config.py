"""Every config composes, differs from its reference only where it says so, and answers mistakes with one message."""

import re
import subprocess

import hydra
import pytest
import yaml
from composition import tree_of
from hydra.errors import HydraException
from omegaconf import OmegaConf

from dapo_lit.cli.config_tree import composed_tree
from dapo_lit.cli.overrides import check_overrides, config_folder
from dapo_lit.cli.study_launch import study_design
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.identity import flatten
from dapo_lit.study.designs import arm_name

EXPERIMENTS = sorted(file.stem for file in (config_folder() / "experiment").glob("*.yaml"))
T = "algorithm.techniques."
STUDY = {"study_name", "task.base_seed", "resume", "budget.steps", "logger.completions_every"}
STUDY |= {"evaluation.every", "evaluation.samples", "evaluation.final_samples"}
"""What every study sets."""
REGIMES = sorted(file.stem for file in (config_folder() / "regime").glob("*.yaml"))
DIFFERS = {
    "dapo": {"study_name"},
    "naive_grpo": {
        "study_name",
        *(T + t for t in ("clip_higher", "dynamic_sampling", "token_level_loss", "soft_overlong_punishment")),
    },
    "ablate_clip_higher": {*STUDY, T + "clip_higher"},
    "ablate_dynamic_sampling": {*STUDY, T + "dynamic_sampling"},
    "ablate_token_level_loss": {*STUDY, T + "token_level_loss"},
    "ablate_overlong_shaping": {*STUDY, T + "soft_overlong_punishment"},
}
"""The keys in which an experiment may differ from the default run."""
ANOTHER_TASK = {
    "chain_sum_rare",
    "four_sums",
    "hf",
    "smollm2_arithmetic",
    "smollm2_gsm8k",
    "string_programs",
    "paper_qwen2_5_32b",
    "qwen2_5_0_5b_gsm8k",
    "qwen2_5_7b_dapo_math",
    "qwen2_5_7b_lora",
    "verl_qwen2_5_32b",
}
"""Experiments with a task and a size of their own."""


@pytest.mark.parametrize(
    ("overrides", "config_name"),
    [
        (["+experiment=dapo", "task=gsm8k", "algorithm.kl={beta: 0.1, where: loss}", "seed=3"], "config"),
        (["policy={path: a}", "policy.path=b", "evaluation.benchmarks=[a,b]", "+task.options.x=1"], "config"),
        (
            [
                "+experiment=ablate_token_level_loss",
                "~regime",
                "trainer=fsdp",
                "trainer.devices=2",
                "runs_dir=${task.label}",
            ],
            "config",
        ),
    ],
)
def test_the_trees_of_the_tests_are_those_that_hydra_composes(overrides, config_name):
    tree_of(overrides[:-1], config_name)  # whose groups are kept
    found, expected = tree_of(overrides, config_name), composed_tree(overrides, config_name)
    assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(expected)


def test_a_key_that_the_trees_of_the_tests_lack_is_named_as_hydra_names_it():
    with pytest.raises(HydraException, match=r"Could not override 'seeed'"):
        tree_of(["seeed=3"])


def test_every_experiment_declares_how_it_differs():
    assert set(EXPERIMENTS) == DIFFERS.keys() | ANOTHER_TASK


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_and_differs_from_the_default_run_in_its_declared_keys_only(compose, name):
    config = compose(f"+experiment={name}", small=False)
    if name in ANOTHER_TASK:
        return
    regime = [f"+regime={config.regime.name}"] if config.regime else []
    mine, reference = (flatten(c.model_dump()) for c in (config, compose(*regime, small=False)))
    differing = {key for key in mine if not key.startswith("study.") and mine[key] != reference[key]}
    assert differing == DIFFERS[name] - ({"budget.steps"} if regime else set())  # a regime has its horizon


@pytest.mark.parametrize("name", [e for e in EXPERIMENTS if e.startswith("ablate_")])
def test_a_multirun_of_an_ablation_runs_its_technique_off_and_on_and_nothing_else(compose, name):
    study = study_design(compose(f"+experiment={name}", small=False))
    assert study.names[0] == "dapo"
    assert study.reference == study.names[1]
    assert study.declared == DIFFERS[name] - STUDY


def test_the_regime_of_an_ablation_can_be_replaced_or_left_out(compose):
    ablation = "+experiment=ablate_token_level_loss"
    assert compose(ablation, small=False).regime.name == "joint"
    assert compose(ablation, "regime=rambling", small=False).task.label == "rambling"
    alone = compose(ablation, "~regime", small=False)
    assert (alone.regime, alone.task.label, alone.study.bases) == (None, "chain_sum", ())
    check_overrides([ablation, "regime=rambling"])
    with pytest.raises(ConfigError, match="with a plus"):
        check_overrides(["+experiment=dapo", "regime=rambling"])
    with pytest.raises(ConfigError, match=r"does not fit regime=joint.*add ~regime"):
        compose(ablation, "task=gsm8k", small=False)


@pytest.mark.parametrize(
    "override",
    [
        f"{group.name}={file.stem}"
        for group in sorted(config_folder().iterdir())
        if group.name in Config.model_fields and group.name not in ("study", "regime", "callbacks")
        for file in sorted(group.glob("*.yaml"))
    ],
)
def test_every_choice_of_every_group_composes(compose, override):
    extra = ["task.path=x.jsonl"] if override.startswith("task=") else []
    extra += ["task.dataset=countdown"] if override == "task=reasoning_gym" else []
    compose(override, *extra, small=False)


@pytest.mark.parametrize("name", REGIMES)
def test_every_regime_composes_with_its_calibration_and_keeps_its_horizon(compose, name):
    alone = compose(f"+regime={name}", "seed=1", small=False)
    assert alone.regime is not None
    assert alone.regime.name == name
    assert alone.budget.steps == alone.regime.steps
    assert alone.task.base_seed == 1
    calibrated = compose(f"+regime={name}", "+study=calibrate", small=False)
    assert calibrated.budget.steps == alone.regime.steps
    assert calibrated.study is not None
    assert calibrated.study.bases == ()
    arms = study_design(calibrated).names
    assert arms[:2] == (alone.regime.reference, f"{alone.regime.reference}@rollout.noise_stream=1")
    assert set(arms[2:]) == {a for c in alone.regime.techniques.values() for a in c.doses} - {alone.regime.reference}


def test_arms_of_an_ablation_are_named_from_their_switches(compose):
    on, off = (compose(f"algorithm.techniques.clip_higher={v}") for v in ("true", "false"))
    names = [arm_name(c.algorithm.techniques.model_dump()) for c in (on, off)]
    assert names == ["dapo", "dapo-clip_higher"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.overlong.cache_tokens=20"], "cache_tokens (20) must be below task.max_response_tokens (20)"),
        (["algorithm.samples_per_prompt=1"], "samples_per_prompt is 1"),
        (["algorithm.minibatch_prompts=3"], "use one of [1, 2, 4]"),
        (["algorithm.optimizer.lr=fast"], "algorithm.optimizer.lr"),
        (["algorithm.techniques.clip_higher=maybe"], "algorithm.techniques.clip_higher"),
        (["policy.path=some/model"], "exclude each other"),
        (["task.name=file"], "task.path is needed"),
        (
            [
                "rollout.overlap=true",
                "rollout=vllm",
                "rollout.vllm.sleep=false",
                "rollout.vllm.tensor_parallel=2",
                "trainer=fsdp",
                "trainer.devices=2",
            ],
            "rollout.overlap and rollout.vllm.tensor_parallel > 1 exclude each other",
        ),
        (["rollout.overlap=true", "rollout=vllm", "rollout.vllm.sleep=true"], "rollout.overlap and rollout.vllm.sleep"),
        (["rollout.overlap=true", "replay.record=[1]"], "rollout.overlap and replay.record"),
    ],
)
def test_values_that_cannot_work_are_named_with_what_to_do(compose, overrides, message):
    with pytest.raises(ConfigError) as caught:
        compose(*overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("algorithm.techniques.clip_highr=true", "did you mean algorithm.techniques.clip_higher?"),
        ("algoritm.clip.high=0.3", "did you mean algorithm?"),
        ("trainer.thread=2", "did you mean trainer.threads?"),
    ],
)
def test_a_typo_on_the_command_line_gets_the_nearest_key(override, hint):
    with pytest.raises(ConfigError) as caught:
        check_overrides([override])
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("task=gsm", "task=gsm: there is no such task; did you mean task=gsm8k?"),
        (
            "+experiment=dapo,naive",
            "experiment=naive: there is no such experiment; did you mean +experiment=naive_grpo?",
        ),
        ("experiment=dapo", "write +experiment=dapo, with a plus"),
        ("+study=table_1", "did you mean +study=table1?"),
        ("algorithm=zzz", "there is no such algorithm; known: "),
    ],
)
def test_a_choice_that_a_group_does_not_have_gets_the_nearest(override, hint):
    with pytest.raises(ConfigError) as caught:
        check_overrides([override])
    assert hint in str(caught.value)
    check_overrides([override, "--config-dir=mine"])  # may be a choice of the user's own


def test_overrides_that_are_right_pass():
    check_overrides(
        ["algorithm=naive_grpo", "+experiment=dapo", "seed=0,1", "hydra.verbose=true", "-m", "task.options.min_terms=2"]
    )


def test_a_typo_inside_a_file_gets_the_nearest_key(compose):
    with pytest.raises(ConfigError) as caught:
        compose("+algorithm.techniques.dinamic_sampling=true")
    assert "algorithm.techniques.dinamic_sampling: unknown key; did you mean" in str(caught.value)


def test_every_fault_is_told_at_once(compose):
    with pytest.raises(ConfigError) as caught:
        compose("algorithm.optimizer.lr=-1", "trainer.threads=0")
    assert len(str(caught.value).splitlines()) == 2


SCRIPT_DIFFERS = {
    "study_name", "algorithm.clip.dual", "algorithm.token_level_denominator", "algorithm.optimizer.warmup_steps",
    "algorithm.optimizer.weight_decay", "algorithm.dynamic_sampling.request_groups",
    "algorithm.dynamic_sampling.max_rounds", "algorithm.dynamic_sampling.on_exhausted",
}  # fmt: skip
"""Where the authors' script is not the paper; docs/paper_and_script.md has a row for each."""


def test_the_paper_at_its_size_makes_16_updates_of_512_completions_a_step(compose):
    algorithm = compose("+experiment=paper_qwen2_5_32b", small=False).algorithm
    assert algorithm.num_prompts * algorithm.samples_per_prompt == 8192
    assert algorithm.minibatch_prompts * algorithm.samples_per_prompt == 512
    assert algorithm.num_prompts // algorithm.minibatch_prompts * algorithm.epochs == 16


def test_the_script_differs_from_the_paper_where_the_page_says_so_and_nowhere_else(compose):
    paper, script = (
        flatten(compose(f"+experiment={name}_qwen2_5_32b", small=False).model_dump()) for name in ("paper", "verl")
    )
    assert {key for key in paper if paper[key] != script[key]} == SCRIPT_DIFFERS
    page = (config_folder().parent / "docs" / "paper_and_script.md").read_text()
    for key in SCRIPT_DIFFERS - {"study_name"}:
        assert key.rpartition(".")[2] in page, key


def test_the_notice_before_a_job_of_slurm_ends_is_longer_than_a_run_waits_for_its_step(compose):
    launcher = yaml.safe_load((config_folder() / "hydra" / "launcher" / "slurm.yaml").read_text())
    for trainer in ("cpu", "fsdp"):
        assert launcher["signal_delay_s"] > compose(f"trainer={trainer}").trainer.grace_s
    assert launcher["timeout_min"] * 60 > launcher["signal_delay_s"]
    assert launcher["max_num_timeout"] > 0


@pytest.mark.parametrize("script", sorted((config_folder().parent / "docs" / "examples" / "slurm").glob("*.sbatch")))
def test_the_notice_in_a_job_file_is_longer_than_its_grace_time(script):
    text = script.read_text()
    assert int(re.search(r"--signal=USR1@(\d+)", text)[1]) > int(re.search(r"^GRACE_S=(\d+)", text, re.M)[1])
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


def test_a_sweep_on_slurm_composes():
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="pip install -e '.[sweep]'")
    overrides = ["+experiment=ablate_clip_higher", "hydra/launcher=slurm", "resume=auto"]
    check_overrides(overrides)
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
        tree = hydra.compose("config", overrides, return_hydra_config=True)
    assert tree.hydra.launcher._target_.endswith("SlurmLauncher")
