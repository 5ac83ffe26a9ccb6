"""Runs of verl and TRL as commands here: their shipped scripts, the arithmetic of batches, and what a script could try.

tests/scripts_elsewhere has the scripts, each with its source and licence.
"""

import shlex
from pathlib import Path

import pytest

from dapo_lit import convert
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import ConfigError
from dapo_lit.config.conversion import Code, Conversion, fits, word_of
from dapo_lit.config.conversion import convert as converted
from dapo_lit.config.identity import differences, identity, kinds
from dapo_lit.config.parsing import NONE, STARTS, other_trainers
from dapo_lit.config.shipped import is_group, known_choices

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
    assert (tree.algorithm.loss, tree.algorithm.clip.low, tree.algorithm.clip.high) == ("gmpo", 0.4, 0.4)
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
    from dapo_lit.cli.foreign_scripts import read_script

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
    assert found.without["lora_target_modules"] == "every matrix of the layers"
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
    found = converted("verl", {"actor.optim.lr": 1e-6, "critic.optim.lr": 1e-5, "critic.ppo_epochs": 4})
    assert found.settings["algorithm.optimizer.lr"] == 1e-6
    assert found.settings["algorithm.epochs"] == 1
    assert found.settings["algorithm.critic.lr"] == 1e-5  # its default estimator has one
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
        ("a.yaml", "a: [\n", "no YAML"),
        ("a.sh", "x" * 1_000_001, "no script"),
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
    assert "would be refused as it is: algorithm: minibatch_prompts (3) does not divide" in capsys.readouterr().out


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
                                  "positive", "switched_off", "dotted", "computed"}, word  # fmt: skip
            for settings in [*entry.get("values", {}).values(), entry.get("with", {})]:
                for key, value in settings.items():
                    assert fits(key, value), (word, key)
                    assert not is_group(key) or value in known_choices(key), (word, value)
            needs = entry.get("if", [])
            for need in [*([needs] if isinstance(needs, str) else needs), *filter(None, [entry.get("unless")])]:
                assert need.partition("=")[0] in table, (word, need)
    for trainer, start in tables[STARTS].items():
        assert start["own"].keys() <= tables[trainer].keys()
        assert all(fits(key, value) for key, value in start["here"].items())


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
