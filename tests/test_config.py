"""Every config composes, differs from its reference only where it says so, and answers mistakes with one message."""

import re
import shutil
import subprocess

import hydra
import pytest
from omegaconf import OmegaConf

from ablations.techniques import DAPO, LADDER, NAIVE_GRPO, REGISTER
from ablations.trainer import flatten
from dapo_lit.cli.config_tree import composed_tree
from dapo_lit.cli.overrides import check_overrides
from dapo_lit.cli.study_launch import study_design
from dapo_lit.config import Config, ConfigError, config_folder
from dapo_lit.config.algorithm import Techniques
from dapo_lit.config.shipped import choice
from dapo_lit.train import train

EXPERIMENTS = sorted(file.stem for file in (config_folder() / "experiment").glob("*.yaml"))
T = "algorithm.techniques."
STUDY = {"study_name", "task.base_seed", "resume", "budget.steps"}
STUDY |= {"evaluation.every", "evaluation.samples", "evaluation.final_samples"}
"""What every study sets."""
DIFFERS = {
    "dapo": {"study_name"},
    "ablate_clip_higher": {*STUDY, T + "clip_higher"},
    "ablate_dynamic_sampling": {*STUDY, T + "dynamic_sampling"},
    "ablate_token_level_loss": {*STUDY, T + "token_level_loss"},
    "ablate_overlong_shaping": {*STUDY, T + "soft_overlong_punishment"},
    "add_soft_punishment": {
        *STUDY - {"evaluation.every"},
        *(T + one for one in ("clip_higher", "dynamic_sampling", "token_level_loss")),
    },
}
"""The keys in which an experiment may differ from the default run."""
ANOTHER_TASK = {
    "chain_sum_rare", "four_sums", "hf", "smollm2_arithmetic", "smollm2_calculator", "smollm2_gsm8k",
    "string_programs", "paper_qwen2_5_32b", "qwen2_5_0_5b_gsm8k", "qwen2_5_7b_dapo_math", "qwen2_5_7b_lora",
    "verl_qwen2_5_32b",
}  # fmt: skip
"""Experiments with a task and a size of their own."""


@pytest.mark.parametrize(
    "overrides",
    [
        ["policy.path=b", "+experiment=ablate_token_level_loss", "~regime", "trainer=fsdp", "runs_dir=${task.label}"],
        ["+regime=joint", "task.options={max_terms: 3}", "+task.options.a=4", "task.options.a=5", "seed=3"],
        ["seed=2", "++seed=4", "task.options={max_terms: 3}", "~callbacks", "seed=5"],
        ["+experiment=four_sums", "policy.lora={rank: 4, alpha: 8}", "policy.lora.alpha=2", "turns.environment='a,b'"],
        ["+regime=joint", "study.arm='dapo-clip_higher'", "study.seeds=[0,1]", "seed=1", "+study=leave_one_out"],
    ],
)  # fmt: skip
def test_a_tree_whose_groups_are_kept_is_the_one_that_hydra_composes(overrides):
    composed_tree([override for override in overrides if not override.startswith("seed=")])  # whose groups are kept
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
        of_hydra = hydra.compose("config", overrides)
    assert OmegaConf.to_yaml(composed_tree(overrides)) == OmegaConf.to_yaml(of_hydra)
    assert OmegaConf.is_struct(composed_tree(overrides))


def test_a_file_of_conf_that_changes_is_composed_again(tmp_path, monkeypatch):
    shutil.copytree(config_folder(), tmp_path / "conf")
    monkeypatch.setattr("dapo_lit.cli.config_tree.config_folder", lambda: tmp_path / "conf")
    assert composed_tree(["+regime=joint"]).seed == composed_tree([]).seed == 0
    file = tmp_path / "conf" / "config.yaml"
    file.write_text(re.sub(r"(?m)^seed: 0", "seed: 9", file.read_text(encoding="utf-8")), encoding="utf-8")
    assert composed_tree([]).seed == 9


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_and_differs_from_the_default_run_in_its_declared_keys_only(compose, name):
    config = compose(f"+experiment={name}", small=False)
    if name in ANOTHER_TASK:
        return
    regime = [f"+regime={config.regime.name}"] if config.regime else []
    mine, reference = (flatten(c.model_dump()) for c in (config, compose(*regime, small=False)))
    differing = {key for key in mine if not key.startswith("study.") and mine[key] != reference[key]}
    in_regime = config.regime is not None and config.budget.steps == config.regime.steps  # whose horizon it has
    assert differing == DIFFERS[name] - ({"budget.steps"} if in_regime else set())


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
    assert alone.study.metric == "eval/chain_sum/avg@2"  # in place of the outcome of the regime
    check_overrides([ablation, "regime=rambling"])
    with pytest.raises(ConfigError, match=r"\+regime"):
        check_overrides(["+experiment=dapo", "regime=rambling"])
    with pytest.raises(ConfigError, match=r"regime=joint.*~regime"):
        compose(ablation, "task=gsm8k", small=False)


@pytest.mark.parametrize(
    "override",
    [
        f"{group.name}={file.stem}"
        for group in sorted(config_folder().iterdir())
        if group.name in Config.model_fields and group.name not in ("study", "regime")
        for file in sorted(group.glob("*.yaml"))
    ],
)
def test_every_choice_of_every_group_composes(compose, override):
    extra = ["task.path=x.jsonl"] if override.startswith("task=") else []
    compose(override, *extra, small=False)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["algorithm.overlong.cache_tokens=20"], "cache_tokens (20)"),
        (["algorithm.samples_per_prompt=1"], "samples_per_prompt"),
        (["algorithm.minibatch_prompts=3"], "[1, 2, 4]"),
        (["algorithm.optimizer.lr=fast"], "algorithm.optimizer.lr"),
        (["algorithm.techniques.clip_higher=maybe"], "algorithm.techniques.clip_higher"),
        (["task.name=file"], "task.path"),
        (
            [
                "rollout.steps_ahead=1", "rollout=vllm", "rollout.vllm.sleep=false", "rollout.vllm.tensor_parallel=2",
                "trainer=fsdp", "trainer.devices=2",
            ],
            "rollout.steps_ahead and rollout.vllm.tensor_parallel",
        ),
        (["rollout.steps_ahead=1", "rollout=vllm", "rollout.vllm.sleep=true"], "steps_ahead and rollout.vllm.sleep"),
        (
            ["rollout=vllm", "rollout.vllm.placement=colocated", "rollout.vllm.deterministic=true"],
            "rollout.vllm.placement=process",
        ),
        (
            ["rollout=vllm", "rollout.vllm.placement=process", "trainer=fsdp", "trainer.devices=2"],
            "rollout.vllm.placement=process",
        ),
        (["rollout.steps_ahead=1", "replay.record=[1]"], "rollout.steps_ahead and replay.record"),
        (["rollout.steps_ahead=2", "algorithm.dynamic_sampling.carry_over=all"], "max_staleness (2)"),
        (["replay.record=[2,9]"], "budget.steps=6"),
        (["algorithm.samples_per_prompt=3", "algorithm.dynamic_sampling.pass_rate_margin=0.4"], "keeps no group"),
        (
            ["algorithm.dynamic_sampling.on_exhausted=replay", "algorithm.dynamic_sampling.max_staleness=0"],
            "max_staleness",
        ),
        (["algorithm.optimizer.betas=[1.0,0.999]"], "algorithm.optimizer.betas.0"),
        (["algorithm.clip.high=28"], "algorithm.clip.high"),
        (
            ["algorithm=ppo", "algorithm.samples_per_prompt=1", "algorithm.techniques.dynamic_sampling=true"],
            "dynamic_sampling=true",
        ),
    ],
)  # fmt: skip
def test_values_that_cannot_work_are_named(compose, overrides, named):
    with pytest.raises(ConfigError, match=re.escape(named)):
        compose(*overrides)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["trainer.sharding.dtype=float16"], "trainer.sharding.dtype"),
        (["policy.dtype=float16", "policy.lora={rank: 4, alpha: 32}"], "policy.dtype"),
    ],
)
def test_float16_can_be_read_and_not_trained_in(compose, overrides, key):
    with pytest.raises(ConfigError, match=f"{key}=float16: "):
        train(compose(*overrides), [])


SCRIPT_DIFFERS = {
    "study_name", "algorithm.clip.dual", "algorithm.token_level_denominator", "algorithm.optimizer.warmup_steps",
    "algorithm.optimizer.weight_decay", "algorithm.dynamic_sampling.request_groups",
}  # fmt: skip
"""Where the authors' script is not the paper; docs/paper_and_script.md has a row for each."""


def test_the_config_has_a_field_for_every_technique_and_presets_are_as_named(compose):
    assert list(Techniques.model_fields) == list(REGISTER)
    assert tuple(REGISTER)[: len(LADDER)] == LADDER
    for preset, on in (("dapo", DAPO), ("naive_grpo", NAIVE_GRPO)):
        techniques = compose(f"algorithm={preset}").algorithm.techniques.model_dump()
        assert {switch for switch, value in techniques.items() if value} == on


def test_the_papers_preset_fits_the_limit_of_any_task(compose):
    for task, cache in (("dapo_math_17k", 4096), ("gsm8k", 19)):
        algorithm = compose("policy=hf", "policy.path=x", f"task={task}", "algorithm=dapo_paper", small=False).algorithm
        assert (algorithm.overlong.cache_tokens, algorithm.optimizer.lr) == (cache, 1e-6)
        assert algorithm.dynamic_sampling.on_exhausted == "error"


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if "7b" in name or "32b" in name])
def test_large_policies_have_the_papers_preset_and_one_reward_rule(compose, name):
    config, preset = compose(f"+experiment={name}", small=False), choice("algorithm", "dapo_paper")
    assert config.reward == compose("+experiment=paper_qwen2_5_32b", small=False).reward
    assert config.algorithm.samples_per_prompt == preset["samples_per_prompt"]
    assert config.algorithm.overlong.cache_tokens == config.task.max_response_tokens // 5
    assert config.algorithm.dynamic_sampling.on_exhausted == preset["dynamic_sampling"]["on_exhausted"] == "error"


def test_the_script_differs_from_the_paper_in_its_declared_keys_only(compose):
    paper, script = (
        flatten(compose(f"+experiment={name}_qwen2_5_32b", small=False).model_dump()) for name in ("paper", "verl")
    )
    assert {key for key in paper if paper[key] != script[key]} == SCRIPT_DIFFERS


@pytest.mark.parametrize("script", sorted((config_folder().parent / "docs" / "examples" / "slurm").glob("*.sbatch")))
def test_the_notice_in_a_job_file_is_longer_than_its_grace_time(script):
    text = script.read_text()
    assert int(re.search(r"--signal=USR1@(\d+)", text)[1]) > int(re.search(r"^GRACE_S=(\d+)", text, re.M)[1])
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


@pytest.mark.parametrize(
    "order", [("+study=cheaper_sampling", "+regime=joint"), ("+regime=joint", "+study=cheaper_sampling")]
)
def test_a_study_overrides_its_regime_in_any_order(order):
    assert composed_tree((*order, "study.arm=dapo")).budget.steps == 64
