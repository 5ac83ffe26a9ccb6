"""Runs of verl and TRL as commands here: their shipped scripts, the arithmetic of batches, and what a script could try.

tests/scripts_elsewhere has the scripts, each with its source and licence.
"""

import json
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from ablations.designs import Arm
from dapo_lit import convert
from dapo_lit.ablate import base_run, parse_arguments
from dapo_lit.cli.command import compose
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.cli.study_launch import prepare, with_arm
from dapo_lit.config import ConfigError
from dapo_lit.config.identity import differences, identity, kinds
from dapo_lit.config.parsing import NONE, STARTS, other_trainers
from dapo_lit.config.shipped import is_group, known_choices
from dapo_lit_tools.commands.convert import conversion
from dapo_lit_tools.conversion.conversion import Code, conditions, word_of
from dapo_lit_tools.conversion.conversion import convert as converted
from dapo_lit_tools.conversion.converted import Conversion, fits

SCRIPTS = Path(__file__).parent / "scripts_elsewhere"


def science(arguments: list[str]) -> dict:
    return identity(resolved(composed_tree(arguments)))


def of(script: str | Path) -> tuple[Conversion, list[str]]:
    """What became of a script, and the arguments here, which nothing refuses."""
    _, found = convert.conversion([str(script)])
    arguments, fault = convert.arguments_of(found.settings)
    assert fault == ""
    return found, arguments


@pytest.fixture(scope="module")
def trl_script(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("trl") / "train.py"
    file.write_text((SCRIPTS / "trl_dapo.txt").read_text())
    return file


def test_a_script_with_tools_leaves_the_limits_and_the_template_of_turns_to_be_set_by_hand():
    tools = {"multi_turn.enable": True, "multi_turn.tool_config_path": "tools.yaml"}
    limits = {"turns.max_turns", "turns.max_observation_tokens", "turns.template"}
    assert limits <= converted("verl", tools).by_hand.keys()
    limited = converted("verl", tools | {"multi_turn.max_assistant_turns": 6})
    assert limited.settings["turns.max_turns"] == 6
    assert limits & limited.by_hand.keys() == limits - {"turns.max_turns"}
    assert not limits & converted("verl", {"multi_turn.enable": False}).by_hand.keys()


def test_the_recipe_of_dapos_authors_becomes_the_experiment_that_was_written_by_hand():
    found, arguments = of(SCRIPTS / "verl_dapo_qwen2_5_32b.sh")
    different = differences(science(arguments), science(["+experiment=verl_qwen2_5_32b"]))
    # Names and places are the script's, and that experiment chose its own evaluation.
    expected = {
        "policy.name", "policy.path", "task.path", "task.eval_path", "task.label", "task.deduplicate", "task.template",
        "evaluation.benchmarks", "evaluation.samples", "evaluation.top_p",
        "budget.steps",  # an epoch there
        "algorithm.overlong.hard_punishment",  # of no effect next to the soft one
        "algorithm.token_level_denominator",  # the version of verl decides; a note says so
    }  # fmt: skip
    of_packing = {key for key in different if key.startswith("trainer.")}
    assert different.keys() - of_packing == expected
    assert different["budget.steps"][0] == composed_tree([]).budget.steps
    assert "trainer.total_epochs" in found.by_hand
    assert "microbatch" in found.notes["actor_rollout_ref.actor.loss_agg_mode"]
    assert found.unknown == []
    tree = composed_tree(arguments)
    assert (tree.trainer.devices, tree.trainer.num_nodes, tree.rollout.engine) == (8, 16, "vllm")
    assert tree.algorithm.dynamic_sampling.max_rounds == 10 * 1536 // 512
    assert tree.task.path == "$HOME/verl/data/dapo-math-17k.parquet"


def test_other_scripts_of_verl_keep_their_settings_or_say_what_becomes_of_them():
    found, arguments = of(SCRIPTS / "verl_gmpo_7b.sh")
    tree = composed_tree(arguments)
    assert (tree.algorithm.loss, tree.algorithm.clip.low) == ("gmpo", 0.4)
    assert not tree.algorithm.techniques.clip_higher  # the upper bound is the lower one
    # verl takes this loss as a mean over sequences, whatever loss_agg_mode is.
    assert not tree.algorithm.techniques.token_level_loss
    assert found.without["actor_rollout_ref.actor.loss_agg_mode"] == "does nothing in this script"
    assert tree.algorithm.techniques.soft_overlong_punishment
    assert (tree.algorithm.overlong.cache_tokens, tree.task.max_response_tokens) == (4096, 8192)
    assert (tree.budget.steps, tree.trainer.num_nodes) == (200, 8)
    assert found.without["trainer.total_epochs"] == "does nothing in this script"
    found, arguments = of(SCRIPTS / "verl_gsm8k_lora.sh")
    tree = composed_tree(arguments)
    assert (tree.algorithm.kl.beta, tree.algorithm.kl.estimator, tree.algorithm.kl.where) == (0.001, "k3", "loss")
    assert tree.policy.lora == {"rank": 64, "alpha": 32.0}
    assert not tree.algorithm.techniques.clip_higher  # its bounds are equal
    assert tree.algorithm.clip.dual == 3.0  # verl's default, which is none here
    assert found.by_hand["data.shuffle"].startswith("seed: ")


@pytest.mark.parametrize("name", ["verl_dapo_qwen2_5_32b.sh", "verl_gmpo_7b.sh", "verl_gsm8k_lora.sh"])
def test_every_setting_of_a_script_is_somewhere_in_the_answer(name):
    from dapo_lit_tools.conversion.foreign_scripts import read_script

    _, settings = read_script(SCRIPTS / name)
    found, _ = of(SCRIPTS / name)
    table = other_trainers()["verl"]
    for key in settings:
        said = key in found.unknown or any(key in part for part in (found.notes, found.by_hand, found.without))
        entry = table[word_of(key, table)] if key not in found.unknown else ""
        assert said or entry, key
        if said or isinstance(entry, dict):
            continue
        assert entry in found.settings, key


def test_trls_example_of_dapo_is_dapo_without_dynamic_sampling(trl_script):
    found, arguments = of(trl_script)
    tree = composed_tree(arguments)
    on = {switch for switch, value in tree.algorithm.techniques.items() if value}
    assert on == {"clip_higher", "token_level_loss", "overlong_filtering", "soft_overlong_punishment"}
    assert (tree.algorithm.clip.low, tree.algorithm.clip.high) == (0.2, 0.28)
    assert (tree.task.max_response_tokens, tree.algorithm.overlong.cache_tokens) == (20480, 4096)
    assert (tree.algorithm.num_prompts, tree.algorithm.minibatch_prompts) == (32, 32)  # 512 completions an update
    assert "num_train_epochs=3, the default" in found.by_hand
    assert "reward_funcs" in found.by_hand


def test_a_command_line_of_trls_takes_its_defaults_along():
    found, arguments = of(SCRIPTS / "trl_grpo_vlm.sh")
    tree = composed_tree(arguments)
    assert tree.policy.path == "HuggingFaceTB/SmolVLM2-2.2B-Instruct"
    assert (tree.algorithm.num_prompts, tree.algorithm.samples_per_prompt) == (1, 2)  # 2 completions an update
    assert (tree.algorithm.optimizer.lr, tree.algorithm.optimizer.schedule) == (1e-5, "linear")
    assert tree.algorithm.optimizer.warmup_steps == 0
    assert tree.policy.lora == {"rank": 16, "alpha": 32.0}
    assert tree.logger.rollouts_every == 1
    assert "lora_target_modules" in found.without
    assert "config_file" in found.without


def test_the_page_of_other_trainers_ports_its_trl_script_as_the_command_does(tmp_path):
    page = (Path(__file__).parents[1] / "docs/coming_from.md").read_text()
    script = tmp_path / "train.py"
    quoted = page.split("```python\nGRPOTrainer(", 1)[1].split("```")[0]
    script.write_text(f"import my_rewards\nGRPOTrainer({quoted}")
    found, arguments = of(script)
    command = page.split("PYTHONPATH=. python -m dapo_lit.train ")[1].split("```")[0].replace("\\\n", " ")
    different = differences(science(arguments), science(shlex.split(command)))
    # The page names a file and its column, and keeps its arithmetic in float32.
    assert different.keys() == {
        "task.path", "task.columns.problem", "trainer.sharding.dtype", "trainer.tf32"
    }  # fmt: skip
    assert found.settings["reward.function"] == "my_rewards.correct"


def trl(**settings) -> Conversion:
    return converted("trl", settings)


def test_updates_become_steps_and_completions_become_prompts():
    # 4 x 8 x 2 devices = 64 completions an update; 128 sampled at once: 2 updates, each twice.
    found = trl(per_device_train_batch_size=4, gradient_accumulation_steps=8, num_processes=2, num_generations=8,
                generation_batch_size=128, num_iterations=2, max_steps=100, warmup_steps=10, save_steps=6)  # fmt: skip
    settings = found.settings
    assert (settings["algorithm.num_prompts"], settings["algorithm.minibatch_prompts"]) == (16, 8)
    assert (settings["algorithm.epochs"], settings["budget.steps"]) == (2, 25)
    assert settings["algorithm.optimizer.warmup_steps"] == 3  # rounded up
    assert settings["trainer.checkpoint_every"] == 2
    assert (settings["trainer"], settings["trainer.devices"]) == ("fsdp", 2)


def test_batches_that_split_groups_and_sizes_that_a_script_computes_are_left_to_the_user():
    for settings in (
        {"per_device_train_batch_size": 4, "num_generations": 8, "max_steps": 10},
        {"per_device_train_batch_size": Code("args.batch"), "max_steps": 10},
    ):
        found = trl(**settings)
        assert "per_device_train_batch_size" in found.by_hand
        assert found.by_hand["budget.steps"].startswith("budget.steps: 10 updates")
        assert not {"algorithm.num_prompts", "budget.steps"} & found.settings.keys()


def test_what_is_off_in_a_script_is_not_carried_over():
    assert "algorithm.kl.beta" not in converted("verl", {"actor.kl_loss_coef": 0.1}).settings
    assert (
        converted("verl", {"actor.use_kl_loss": True, "actor.kl_loss_coef": 0.1}).settings["algorithm.kl.beta"] == 0.1
    )
    assert converted("verl", {"trainer.test_freq": -1}).settings["evaluation.every"] == 0
    assert "trainer.checkpoint_every" not in converted("verl", {"trainer.save_freq": -1}).settings
    assert "algorithm.correction.kind" not in trl().settings
    with_vllm = trl(use_vllm=True).settings
    assert with_vllm["algorithm.correction.kind"] == "sequence_mask"
    assert with_vllm["algorithm.correction.band"] == [0.0, 3.0]


def test_float16_which_trl_trains_in_with_a_scaled_loss_is_left_to_the_user():
    found = trl(fp16=True)
    assert "trainer.sharding.dtype" not in found.settings
    assert found.by_hand["fp16"].startswith("trainer.sharding.dtype: bfloat16")
    assert "fp16" not in trl(fp16=False).by_hand


def test_keys_of_verls_critic_are_not_taken_for_its_actors():
    found = converted("verl", {"actor.optim.lr": 1e-6, "critic.optim.lr": 2e-5, "critic.ppo_epochs": 4})
    assert found.settings["algorithm.optimizer.lr"] == 1e-6
    assert found.settings["algorithm.epochs"] == 1
    assert found.settings["algorithm.critic"]["lr"] == 2e-5  # its default estimator has one
    assert found.unknown == ["critic.ppo_epochs"]


def test_a_shell_script_is_filled_in_as_a_shell_would_and_nothing_runs(tmp_path):
    marker = tmp_path / "ran"
    script = tmp_path / "run.sh"
    script.write_text(
        "n=8; limit=$((1024 * 2))\nlimit=$((1024 * 2))\nexport LR=1e-6\n"
        f"python -m verl.trainer.main_ppo data.max_response_length=$(((limit + 24) / 2)) \\\n"
        f"  actor_rollout_ref.actor.optim.lr=$LR trainer.nnodes=${{NODES:-1}} trainer.n_gpus_per_node=1 \\\n"
        f"  actor_rollout_ref.rollout.n=$(touch {marker}) data.train_files='a `touch {marker}`' \\\n"
        f'  algorithm.adv_estimator=grpo actor_rollout_ref.model.path="${{oc.env:HOME}}"\n'
    )
    found, arguments = of(script)
    assert found.settings["task.max_response_tokens"] == 1036
    assert found.settings["algorithm.optimizer.lr"] == 1e-6
    assert found.settings["trainer"] == "gpu"
    assert not marker.exists()
    printed = "\n".join(convert.lines("verl", found, arguments, ""))
    # What the answer holds is quoted, so that pasting it runs nothing either, and no variable of ours is filled in.
    assert f"'task.path='\"'\"'a `touch {marker}`'\"'\"''" in printed
    assert str(Path.home()) not in printed.replace(str(tmp_path), "")


def test_yaml_of_both_trainers_is_read_and_references_are_followed(tmp_path):
    file = tmp_path / "ppo.yaml"
    file.write_text(
        "data: {max_response_length: 64, train_batch_size: 8}\n"
        "actor_rollout_ref:\n  rollout: {n: 4, response_length: '${data.max_response_length}'}\n"
        "  actor: {ppo_mini_batch_size: '${data.train_batch_size}', grad_clip: '${oc.env:SECRET}'}\n"
        "algorithm: {adv_estimator: grpo}\n"
    )
    found, _ = of(file)
    assert found.settings["algorithm.minibatch_prompts"] == 8
    assert "${oc.env:SECRET}" in found.by_hand["actor_rollout_ref.actor.grad_clip"]
    file.write_text("num_generations: 4\nlearning_rate: 1e-5\nmodel_name_or_path: m\n")
    found, _ = of(file)
    assert found.settings["algorithm.optimizer.lr"] == 1e-5


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("a.py", "import trl\n", "GRPOConfig"),
        ("a.py", "def f(:\n", "no Python"),
        ("a.sh", "echo hello\n", "no settings"),
        ("a.yaml", "- 1\n", "no mapping"),
        ("a.yaml", "a: [\n", "not YAML"),
        ("a.sh", "x" * 250_001, "at most 250,000 are read"),
        ("none.sh", None, "cannot be read"),
    ],
)
def test_what_is_no_script_is_refused_in_one_line(tmp_path, capsys, name, text, part):
    if text is not None:
        (tmp_path / name).write_text(text)
    assert convert.main([str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert part in error
    assert error.count("\n") == 1


def test_a_command_line_is_taken_as_it_is_and_the_answer_is_complete(capsys):
    given = "python grpo.py --model_name_or_path m --dataset_name d.jsonl --max_steps 10 --frobnicate 3"
    assert convert.main(given.split()) == 0
    printed = capsys.readouterr().out
    command = printed.split("\n\n")[0].replace("\\\n", " ")
    assert command.startswith("dapo-lit train algorithm=naive_grpo")
    tree = composed_tree(shlex.split(command)[2:])
    assert (tree.policy.path, tree.task.path, tree.budget.steps) == ("m", "d.jsonl", 10)
    assert "Not in the table of trl's keys, and left out:\n  frobnicate" in printed


def test_a_command_that_would_be_refused_says_so(capsys):
    given = "python -m verl.trainer.main_ppo data.train_batch_size=10 actor_rollout_ref.actor.ppo_mini_batch_size=3"
    assert convert.main([*given.split(), "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4"]) == 2
    assert "refused as it is: algorithm: minibatch_prompts (3) " in capsys.readouterr().out


def test_every_entry_of_the_table_names_keys_and_choices_that_there_are():
    known = kinds()
    tables = other_trainers()
    for trainer, table in tables.items():
        if trainer == STARTS:
            continue
        for word, entry in table.items():
            if isinstance(entry, str):
                assert entry.startswith(NONE) or entry in known or trainer != "verl", (trainer, word)
                continue
            assert entry["key"] in known, (trainer, word)
            assert set(entry) <= {"key", "values", "with", "note", "by_hand", "if", "unless", "unit", "part",
                                  "none_is", "positive", "switched_off", "dotted", "computed"}, word  # fmt: skip
            assert entry.get("none_is", word) in table
            for settings in [*entry.get("values", {}).values(), entry.get("with", {})]:
                for key, value in settings.items():
                    assert fits(key, value), (word, key)
                    assert not is_group(key) or value in known_choices(key), (word, value)
            for need in [*conditions(entry.get("if", [])), *conditions(entry.get("unless", []))]:
                assert need.partition("=")[0] in table, (word, need)
    for trainer, start in tables[STARTS].items():
        assert start["own"].keys() <= tables[trainer].keys()
        assert start.get("notes", {}).keys() <= known.keys()
        assert all(fits(key, value) for key, value in start["here"].items())


def test_a_choice_of_a_group_brings_no_value_of_another_section_and_none_of_the_algorithm():
    """Only `starts` chooses the group `algorithm`: its other choices have the values of papers, such as a KL term, that
    the script of another trainer does not have."""
    for trainer, start in other_trainers()[STARTS].items():
        base = [f"{key}={value}" for key, value in start["here"].items() if is_group(key)]
        entries = [entry for entry in other_trainers()[trainer].values() if not isinstance(entry, str)]
        settings = [one for entry in entries for one in [*entry.get("values", {}).values(), entry.get("with", {})]]
        chosen = {(key, value) for one in settings for key, value in one.items() if is_group(key)}
        assert chosen
        for group, choice in chosen:
            assert group != "algorithm"
            different = differences(science(base), science([*base, f"{group}={choice}"]))
            assert [key for key in different if not key.startswith(f"{group}.")] == [], (group, choice)


def verl(**settings) -> Conversion:
    """Of the names of verl's settings, with `__` for a dot."""
    return converted("verl", {key.replace("__", "."): value for key, value in settings.items()})


def changed(found: Conversion, other: Conversion) -> dict[str, object]:
    """What decides what is learned and differs from the command for another script: key -> value."""
    of_both = [science(convert.arguments_of(one.settings)[0]) for one in (other, found)]
    # A family is a name, and options are there by their keys.
    named = ("algorithm.family", "algorithm.loss_options")
    return {key: after for key, (_, after) in differences(*of_both).items() if key not in named}


def test_estimators_of_verl_bring_their_advantages_and_leave_loss_and_kl_as_the_script_has_them():
    grpo = verl(adv_estimator="grpo", rollout__n=4)
    assert changed(verl(adv_estimator="rloo", rollout__n=4), grpo) == {"algorithm.advantage.estimator": "leave_one_out"}
    returns = verl(adv_estimator="reinforce_plus_plus", rollout__n=4, gamma=0.9)
    assert changed(returns, grpo) == {
        "algorithm.advantage.estimator": "returns", "algorithm.advantage.whiten": True, "algorithm.advantage.gamma": 0.9
    }  # fmt: skip
    # verl's default estimator, with the values of its critic.yaml; the losses of both halve the square.
    critic = {"lr": 1e-5, "loss_weight": 1.0, "clip": 0.5, "warmup_steps": 0}
    expected = {"algorithm.advantage.estimator": "gae", "algorithm.advantage.whiten": True}
    expected |= {f"algorithm.critic.{key}": value for key, value in critic.items()}
    assert changed(verl(rollout__n=4), grpo) == expected
    given = {"critic.optim.lr": 1e-6, "critic.cliprange_value": 0.2, "trainer.critic_warmup": 20}
    assert converted("verl", given).settings["algorithm.critic"] == {
        "lr": 1e-6, "loss_weight": 1.0, "clip": 0.2, "warmup_steps": 20
    }  # fmt: skip


def test_a_kl_term_of_verl_is_there_only_if_the_script_asks_for_one():
    for estimator in ("gae", "rloo", "reinforce_plus_plus"):
        off = verl(adv_estimator=estimator, rollout__n=4, use_kl_in_reward=False, use_kl_loss=False)
        assert composed_tree(convert.arguments_of(off.settings)[0]).algorithm.kl.beta == 0
        on = verl(adv_estimator=estimator, rollout__n=4, use_kl_in_reward=True)
        kl = composed_tree(convert.arguments_of(on.settings)[0]).algorithm.kl
        assert (kl.beta, kl.where, kl.estimator) == (0.001, "reward", "k1")


def test_of_two_kl_terms_of_verl_that_of_the_loss_is_carried_over_and_the_other_is_named():
    loss = {"actor.use_kl_loss": True, "actor.kl_loss_coef": 0.01, "actor.kl_loss_type": "low_var_kl"}
    reward = {
        "algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.5, "algorithm.kl_penalty": "kl",
        "algorithm.gamma": 0.9,
    }  # fmt: skip
    for script in (loss | reward, reward | loss):
        found = converted("verl", script)
        kl = {key: value for key, value in found.settings.items() if key.startswith("algorithm.kl.")}
        assert kl == {"algorithm.kl.where": "loss", "algorithm.kl.beta": 0.01, "algorithm.kl.estimator": "k3"}
        named = {key for key, reason in found.without.items() if reason.startswith("one KL term here")}
        assert named == {"algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"}


def test_losses_of_verl_bring_their_options_and_no_other_technique():
    vanilla = verl(adv_estimator="grpo", rollout__n=4)

    def with_loss(name: str, **settings) -> dict[str, object]:
        found = verl(adv_estimator="grpo", rollout__n=4, actor__policy_loss__loss_mode=name, **settings)
        return changed(found, vanilla)

    options = "algorithm.loss_options"
    assert with_loss("clip_cov") == {
        "algorithm.loss": "clip_cov", f"{options}.frac": 2e-4, f"{options}.cov_low": 1.0, f"{options}.cov_high": 5.0
    }  # fmt: skip
    assert with_loss("kl_cov") == {
        "algorithm.loss": "kl_cov", f"{options}.frac": 2e-4, f"{options}.coefficient": 0.1
    }  # fmt: skip
    given = with_loss("kl_cov", policy_loss__kl_cov_ratio=2e-3, policy_loss__ppo_kl_coef=1.0)
    assert (given[f"{options}.frac"], given[f"{options}.coefficient"]) == (2e-3, 1.0)
    assert with_loss("cispo") == {"algorithm.loss": "cispo"}
    # Means over sequences, whatever loss_agg_mode is.
    for name, loss in (("gspo", "gspo"), ("geo_mean", "gmpo")):
        assert with_loss(name, loss_agg_mode="token-mean") == {
            "algorithm.loss": loss, "algorithm.techniques.token_level_loss": False
        }  # fmt: skip


def test_a_ratio_of_sequences_of_trl_keeps_the_scripts_bounds():
    tokens = trl(epsilon=3e-4, loss_type="grpo")
    assert changed(trl(epsilon=3e-4, loss_type="grpo", importance_sampling_level="sequence"), tokens) == {
        "algorithm.loss": "gspo"
    }
    assert not composed_tree(convert.arguments_of(tokens.settings)[0]).algorithm.techniques.clip_higher
    assert changed(trl(loss_type="dr_grpo"), trl(loss_type="grpo")) == {
        "algorithm.completion_level_denominator": "constant"
    }


def test_a_null_of_a_script_is_not_taken_for_its_trainers_default():
    _, found = convert.conversion(["grpo.py", "--loss_type", "dr_grpo", "--scale_rewards", "none"])
    assert found.settings["algorithm.advantage.scale_by_std"] is False
    # Another key that the null hands its meaning to.
    clips = {"actor.clip_ratio_low": None, "actor.clip_ratio_high": None, "actor.clip_ratio": 0.28}
    found = converted("verl", clips)
    assert found.settings["algorithm.clip.low"] == 0.28
    assert found.settings["algorithm.techniques.clip_higher"] is False
    assert "actor.clip_ratio" not in found.without
    found = converted("verl", clips | {"actor.clip_ratio_low": 0.2})
    assert (found.settings["algorithm.clip.low"], found.settings["algorithm.clip.high"]) == (0.2, 0.28)
    assert converted("verl", {"actor.clip_ratio": 0.28}).without == {"actor.clip_ratio": "does nothing in this script"}
    # A default that it takes away, and that nothing here stands for.
    found = trl(use_vllm=True, vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=None)
    assert "vllm_importance_sampling_clip_max" in found.by_hand
    assert "algorithm.correction.band" not in found.settings
    # One that says what not writing it says.
    assert changed(trl(epsilon_high=None, report_to=None, resume_from_checkpoint=None), trl()) == {}
    assert trl(epsilon_high=None, generation_batch_size=None).by_hand == trl().by_hand


def test_filters_of_verl_without_a_limit_get_none_and_a_score_is_the_verdict():
    filtering = {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "score"}
    limit, exhausted = "algorithm.dynamic_sampling.max_rounds", "algorithm.dynamic_sampling.on_exhausted"
    for unlimited in ({}, {"algorithm.filter_groups.max_num_gen_batches": 0}):
        found = converted("verl", filtering | unlimited)
        assert found.by_hand["max_num_gen_batches"].startswith(limit)
        assert not {limit, exhausted} & found.settings.keys()
        # Its DAPO reward manager stores the score before it adds the length penalty.
        assert found.settings["algorithm.dynamic_sampling.filter_on"] == "correctness"
    found = converted("verl", filtering | {"algorithm.filter_groups.max_num_gen_batches": 10})
    assert (found.settings[limit], found.settings[exhausted]) == (10, "error")
    assert "ends with an error" in found.notes["algorithm.filter_groups.max_num_gen_batches"]
    shaped = converted("verl", filtering | {"algorithm.filter_groups.metric": "seq_reward"})
    assert shaped.settings["algorithm.dynamic_sampling.filter_on"] == "shaped_reward"


def test_adapters_without_an_alpha_get_their_trainers():
    assert converted("verl", {"model.lora_rank": 64}).settings["policy.lora"] == {"rank": 64, "alpha": 16}
    assert "policy.lora" not in converted("verl", {"model.lora_rank": 0}).settings
    unknown = converted("verl", {"model.lora_rank": Code("args.rank")})
    assert "policy.lora" in unknown.by_hand
    assert "policy.lora" not in unknown.settings


@pytest.mark.parametrize(
    ("launcher", "devices", "machines"),
    [
        ("torchrun --nproc_per_node=8", 8, 1),
        ("torchrun --nnodes 2 --nproc-per-node 4", 4, 2),
        ("accelerate launch --num_processes 8 --num_machines 2", 4, 2),
    ],
)
def test_devices_of_a_launcher_count_in_the_batch(launcher, devices, machines):
    _, found = convert.conversion(f"{launcher} grpo.py --per_device_train_batch_size 4 --num_generations 4".split())
    assert found.settings["algorithm.minibatch_prompts"] == 8 if machines * devices == 8 else False
    assert found.settings["trainer.devices"] == devices
    assert found.settings.get("trainer.num_nodes", 1) == machines


def test_devices_that_a_launcher_counts_itself_are_left_to_the_user():
    _, found = convert.conversion(["torchrun", "--nproc_per_node=gpu", "grpo.py"])
    assert "per_device_train_batch_size" in found.by_hand
    assert "algorithm.num_prompts" not in found.settings


def test_a_warm_up_as_a_share_and_prompts_without_a_limit_are_said():
    assert trl(warmup_ratio=0.1).by_hand["warmup_ratio"].startswith("algorithm.optimizer.warmup_steps")
    assert "warmup_ratio" not in trl(warmup_ratio=0.0).by_hand
    assert trl(warmup_ratio=0.1, warmup_steps=5).without == {"warmup_ratio": "does nothing in this script"}
    assert "drops none" in trl().notes["task.max_prompt_tokens"]
    assert "task.max_prompt_tokens" not in trl(max_prompt_length=512).notes


def test_corrections_of_verls_rollouts_are_carried_over_or_left_to_the_user():
    section = "algorithm.rollout_correction"
    found = converted("verl", {f"{section}.rollout_is": "token", f"{section}.rollout_is_threshold": 2.0})
    assert found.settings["algorithm.correction.kind"] == "tis"  # whose own bound is 2
    assert found.by_hand.keys() & {f"{section}.rollout_is", f"{section}.rollout_is_threshold"} == set()
    other = converted("verl", {f"{section}.rollout_is": "token", f"{section}.rollout_is_threshold": 5.0})
    assert other.by_hand[f"{section}.rollout_is_threshold"].startswith("algorithm.correction.band")
    assert f"{section}.rollout_is" in converted("verl", {f"{section}.rollout_is": "sequence"}).by_hand
    assert f"{section}.rollout_rs" in converted("verl", {f"{section}.rollout_rs": "seq_mean_k3"}).by_hand
    # verl's bypass starts the ratio at the engine's log-probs, and gives no weights.
    bypass = converted("verl", {f"{section}.bypass_mode": True, f"{section}.rollout_is": "token"})
    assert bypass.settings["algorithm.old_logprobs"] == "rollout"
    assert "algorithm.correction.kind" not in bypass.settings
    off = {f"{section}.rollout_is": None, f"{section}.rollout_is_threshold": 2.0, f"{section}.bypass_mode": False}
    assert converted("verl", off).by_hand.keys() == converted("verl", {}).by_hand.keys()


def python(tmp_path: Path, text: str) -> Conversion:
    (tmp_path / "train.py").write_text(text)
    return convert.conversion([str(tmp_path / "train.py")])[1]


@pytest.mark.parametrize(
    "config",
    [
        "{'num_generations': 4, 'learning_rate': 2e-5, 'reward_funcs': rewards.mine}",
        "dict(num_generations=4, **{'learning_rate': 2e-5})",
    ],
)
def test_settings_that_a_python_script_keeps_in_a_mapping_are_read(tmp_path, config):
    for text in (f"cfg = {config}\nGRPOConfig(**cfg, beta=0.1)", f"GRPOConfig(beta=0.1, **{config})"):
        found = python(tmp_path, text)
        assert found.settings["algorithm.samples_per_prompt"] == 4
        assert found.settings["algorithm.optimizer.lr"] == 2e-5
        assert found.settings["algorithm.kl.beta"] == 0.1


@pytest.mark.parametrize(
    ("script", "place"),
    [
        ("GRPOConfig(beta=0.1, **load())", "**load()"),
        ("cfg = {'beta': 0.1}\ncfg['beta'] = 0.2\nGRPOConfig(**cfg)", "**cfg"),
        ("cfg = dict(beta=0.1)\ncfg.update(beta=0.2)\nGRPOConfig(**cfg)", "**cfg"),
        ("GRPOConfig('out', *more)", "*more"),
        ("GRPOConfig('out', True)", "*True"),
        ("GRPOTrainer(model='m', peft_config=LoraConfig(**lora))", "**lora"),
        ("GRPOConfig(**{key: 4, 'beta': 0.1})", "*key"),
    ],
)
def test_settings_of_a_python_script_that_cannot_be_read_are_said(tmp_path, script, place):
    assert "not be read" in python(tmp_path, script).by_hand[place]


def test_arguments_of_trls_calls_may_be_given_by_their_places(tmp_path):
    found = python(
        tmp_path,
        "penalty = get_soft_overlong_punishment(20480, 4096)\n"
        "GRPOTrainer('m', [my_rewards.correct, penalty], GRPOConfig('out', max_completion_length=20480), rows)\n",
    )
    assert found.settings["algorithm.overlong.cache_tokens"] == 4096
    assert found.settings["algorithm.techniques.soft_overlong_punishment"]
    assert (found.settings["policy.path"], found.settings["runs_dir"]) == ("m", "out")
    assert "train_dataset" in found.by_hand
    unknown = python(tmp_path, "GRPOConfig(beta=0.0)\nget_soft_overlong_punishment(20480, args.cache)\n")
    assert "args.cache" in unknown.by_hand["soft_punish_cache"]
    assert "soft_punish_cache" in python(tmp_path, "GRPOConfig(beta=0.0)\nget_soft_overlong_punishment()\n").by_hand


def test_adapters_of_a_python_script_have_pefts_defaults(tmp_path):
    found = python(tmp_path, "GRPOTrainer(model='m', peft_config=LoraConfig(r=16, use_rslora=True))\n")
    assert found.settings["policy.lora"] == {"rank": 16, "alpha": 8}
    assert "LoraConfig.use_rslora" in found.unknown


def test_a_text_of_a_script_is_never_filled_in_by_omegaconf(monkeypatch):
    monkeypatch.setenv("SECRET", "0123456789")
    found = converted("trl", {"model": "${oc.env:SECRET}", "dataset_name": "d.jsonl", "max_steps": 3})
    arguments, fault = convert.arguments_of(found.settings)
    assert fault == ""
    assert "0123456789" not in "".join(arguments)
    assert resolved(composed_tree(arguments))["policy"]["path"] == "${oc.env:SECRET}"


def test_neither_trainer_is_named_where_neither_is_in_a_line():
    with pytest.raises(ConfigError, match="num_generations"):
        convert.conversion(["python", "train.py"])


VERL_LINE = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n="
TRL_CALL = "from trl import GRPOConfig\nargs = GRPOConfig(num_generations={})\n"
DOUBLED = "".join(f"a{i} = [a{i - 1}, a{i - 1}]\n" for i in range(1, 40))
LAUGHS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
BOMBS = {
    "doubling.sh": ("A=aaaaaaaaaa\n" + "A=$A$A\n" * 36 + VERL_LINE + "$A", "its variables stand for more than"),
    "uses.sh": ("A=" + "a" * 40_000 + "\n" + "$A\n" * 1000 + VERL_LINE + "1", "its variables stand for more than"),
    "brackets.sh": ("$((" * 16_000 + "\n" + VERL_LINE + "16", ""),
    "sums.sh": ("X=$((" + "1+" * 20_000 + "1))\n" + VERL_LINE + "$X", ""),
    "squares.sh": ("X=9223372036854775807\n" + "X=$((X*X))\n" * 12 + VERL_LINE + "16", ""),
    "quote.sh": (("'" + "a" * 49_000 + "\n") * 5 + VERL_LINE + "16", ""),
    "flags.sh": (" ".join(f"--k{i} {i}" for i in range(3900)) + "\n", ""),
    "parts.sh": ("a." * 20_000 + "b=1\n" + VERL_LINE + "16", ""),
    "digits.sh": (VERL_LINE + "9" * 5000, ""),
    "doubling.py": ("a0 = [1, 2]\n" + DOUBLED + TRL_CALL.format("a39"), "it holds more than 30,000 values"),
    "code.py": (TRL_CALL.format("[" * 80 + "1, " * 9000 + "f()" + "]" * 80), ""),
    "number.py": (TRL_CALL.format("0x" + "f" * 100_000), "line 2: has a whole number beyond 64 bits"),
    "deep.py": (TRL_CALL.format("[" * 150 + "]" * 150), "nested too deep"),
    "wide.py": ("x = 1\n" * 40_000 + TRL_CALL.format("8"), "more than 30,000 parts"),
    "many.yaml": ("data:\n" + "".join(f"  k{i}: {i}\n" for i in range(15_000)), ""),
    "aliases.yaml": ("a0: &a0 [x, y]\n" + LAUGHS, "with its aliases written out"),
    "itself.yaml": ("data: &d {x: *d}\n", "it holds itself"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_script_that_stands_for_more_than_it_holds_is_read_or_refused_within_two_seconds(tmp_path, name):
    text, said = BOMBS[name]
    (tmp_path / name).write_text(text)
    started = time.process_time()
    try:
        conversion([str(tmp_path / name)])
        refusal = ""
    except ConfigError as error:
        refusal = str(error)
    assert time.process_time() - started < 2
    assert said in refusal
    assert "\n" not in refusal


def typed(text: str, tmp_path: Path) -> list[list[str]]:
    """The arguments of each command of the project's in lines for a shell, as bash passes them."""
    (tmp_path / "python").write_text('#!/bin/bash\nprintf "%s\\n" "$@" END >> "$TYPED"\n')
    (tmp_path / "python").chmod(0o755)
    said = tmp_path / "typed.txt"
    said.unlink(missing_ok=True)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TYPED": str(said), "HOME": "/home/a b"}
    subprocess.run(["bash", "-euc", text], env=environment, check=True)
    return [block.split("\n") for block in said.read_text().removesuffix("\nEND\n").split("\nEND\n")]


@pytest.mark.parametrize(
    "script",
    [
        "verl_dapo_qwen2_5_32b.sh",
        "verl_gsm8k_lora.sh",
        "python grpo.py --model_name_or_path m --dataset_name d.jsonl --max_steps 10 --epsilon_high 0.28",
    ],
)
def test_the_last_lines_are_the_ablation_with_the_values_of_the_run(tmp_path, capsys, script):
    given = shlex.split(script) if " " in script else [str(SCRIPTS / script)]
    arguments, run = convert.run_of(conversion(given)[1].settings)
    convert.main(given)
    commands = typed(
        capsys.readouterr().out.split("Its ablation, with the same values:")[1].partition("\n")[2], tmp_path
    )
    assert [words[1].removeprefix("dapo_lit.") for words in commands] == ["plan", "train", "ablate"]
    plan, study, ablate = (words[2:] for words in commands)
    assert study[0] == "-m"
    _, sweep = prepare([*study, "study.pilot=true"])
    techniques = {technique for technique, on in run["algorithm"]["techniques"].items() if on}
    arms = {cell.arm for cell in sweep.cells}
    assert arms == {Arm(frozenset(techniques)).name, *(Arm(frozenset(techniques - {t})).name for t in techniques)}
    home = [argument.replace("$HOME", "/home/a b") for argument in arguments]
    assert differences(science(plan_of(plan)), science(home)) == {}
    cell = resolved(with_arm(composed_tree([*study[1:-1], f"study.arm={Arm(frozenset(techniques)).name}"])))
    # A study evaluates its last policy on more samples, and names itself.
    assert differences(identity(cell), science(home)).keys() == {"evaluation.final_samples"}
    options, own = parse_arguments(ablate)
    base, on = base_run(options, own)
    assert on == techniques
    assert compose(*base, "+study=leave_one_out", "study.arm=dapo").task.path == run["task"]["path"].replace(
        "$HOME", "/home/a b"
    )


def plan_of(arguments: list[str]) -> list[str]:
    """Those of a plan that a training has too."""
    return [argument for argument in arguments if not argument.startswith(("runs=", "hardware="))]


PYTHON = """
from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
import my_rewards
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
data = load_dataset("openai/gsm8k", "main", split="train").map(with_system_prompt)
model = AutoModelForCausalLM.from_pretrained(MODEL, quantization_config=bits)
args = GRPOConfig(max_steps=10, top_p=0.9, lr_scheduler_type="constant_with_warmup")
args.num_generations = 16
args.per_device_train_batch_size = 16
if big:
    args.beta = 0.1
GRPOTrainer(model=model, args=args, reward_funcs=[my_rewards.f], train_dataset=data).train()
"""


@pytest.mark.parametrize("kind", ["script", "notebook", "loaded in its place"])
def test_models_data_and_later_settings_of_a_python_script_are_followed(tmp_path, kind):
    file = tmp_path / ("a.ipynb" if kind == "notebook" else "a.py")
    cells = [{"cell_type": "markdown", "source": "GRPOConfig("}, {"cell_type": "code", "source": ["%pip x\n", PYTHON]}]
    loaded = "AutoModelForCausalLM.from_pretrained(MODEL, quantization_config=bits)"
    in_place = PYTHON.replace(f"model = {loaded}\n", "").replace("model=model", f"model={loaded}")
    texts = {"script": PYTHON, "notebook": json.dumps({"cells": cells}), "loaded in its place": in_place}
    file.write_text(texts[kind])
    found, _ = of(file)
    expected = {
        "policy.path": "Qwen/Qwen2.5-0.5B-Instruct", "task.path": "openai/gsm8k:main", "budget.steps": 10,
        "algorithm.samples_per_prompt": 16, "algorithm.optimizer.schedule": "constant",
    }  # fmt: skip
    assert expected.items() <= found.settings.items()
    assert "with_system_prompt" not in found.settings
    assert "map in line" in found.by_hand["train_dataset, its rows"]
    assert "in a branch" in found.by_hand["beta"]
    assert "4-bit weights" in found.without["quantization_config"]
    assert "whole distribution" in found.without["top_p"]
    assert "evaluation.top_p" not in found.settings


OTHER_TRAINERS = {
    "NeMo-RL": "uv run examples/run_grpo_math.py --config x.yaml grpo.num_prompts_per_step=4 policy.model_name=m",
    "EasyR1": "python3 -m verl.trainer.main config=examples/config.yaml worker.actor.model.model_path=m data.x=1",
    "open-instruct": "python open_instruct/grpo_fast.py --num_samples_per_prompt_rollout 8 --beta 0.0",
    "OpenRLHF": "ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --pretrain m --n_samples_per_prompt 8",
    "prime-rl": "uv run rl @ configs/train.toml --wandb.project x",
    "not in the table": "python x.py --beta 0.1 --a 1 --b 2 --c 3 --d 4",
    "takes its settings from its command line": "a.py",
}


@pytest.mark.parametrize("said", OTHER_TRAINERS)
def test_what_is_no_script_of_verl_or_trl_is_refused_by_name(tmp_path, capsys, said):
    file = tmp_path / "a.py"
    file.write_text("a, t = TrlParser((A, GRPOConfig)).parse_args_and_config()\nGRPOTrainer(model=a.model, args=t)\n")
    text = OTHER_TRAINERS[said]
    assert convert.main([str(file)] if text == "a.py" else [text]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_config_that_a_command_names_is_read_and_the_command_counts(tmp_path):
    (tmp_path / "run.yaml").write_text("num_generations: 16\nepsilon_high: 0.28\nlearning_rate: 2e-5\n")
    given = ["trl", "grpo", "--config", str(tmp_path / "run.yaml"), "--num_generations", "8", "--output_dir", "a#1"]
    settings = conversion(given)[1].settings
    assert (settings["algorithm.samples_per_prompt"], settings["algorithm.clip.high"]) == (8, 0.28)
    assert settings["runs_dir"] == "a#1"
    assert "is not here" in conversion([*given[:3], "gone.yaml", *given[4:]])[1].by_hand["--config"]
