"""What `auto` becomes: the most that fits by the simulation, recomputation only where memory asks for it, the rest to
the engine's cache; on a CPU a fixed number.

Choices are tested on a memory that is a short formula; tests/test_plan.py has the simulation.
"""

import pytest
import torch
import yaml
from command_line import run_cli

from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import Config, ConfigError, parse, parse_as
from dapo_lit.engines.vllm_engine.options import RESERVED_BYTES
from dapo_lit.forecast.fitting import (
    ENGINE_RESERVE_GIB,
    STEP_TOKENS,
    USABLE,
    changed,
    fewest_nodes,
    fitted,
    largest_micro_batch,
)
from dapo_lit.forecast.memory import GIB, Memory, engine_weights, resident_engine
from dapo_lit.preflight.training import precision_warnings
from dapo_lit.train import sized
from dapo_lit_tools.planning.hardware import PlanConfig
from dapo_lit_tools.planning.plan import what_fits

SMALL = (
    "policy=micro", "policy.architecture.max_position_embeddings=4096", "task.max_prompt_tokens=16",
    "task.max_response_tokens=240", "trainer=gpu", "algorithm.minibatch_prompts=32",
)  # fmt: skip


def composed(*overrides: str) -> Config:
    return parse(resolved(composed_tree(overrides)))


def planned(*overrides: str) -> PlanConfig:
    return parse_as(resolved(composed_tree(overrides, "plan")), PlanConfig)


PARAMETERS = 20_000_000
ACTIVATION_BYTES = {"none": 40_000, "full": 8_000}
"""Of a token, with and without recomputation."""


def simple_memory(config: Config, quick: bool = False) -> Memory:
    """In place of `training_memory`: shards, gradients, states, and activations that bend upwards with the tokens."""
    trainer = config.trainer
    shards, tokens = 4 * PARAMETERS / (trainer.devices * trainer.num_nodes) / GIB, trainer.tokens_at_once
    activations = (ACTIVATION_BYTES[trainer.activation_checkpointing] * tokens + tokens**2 / 2) / GIB
    parts = ("parameters, sharded", "gradients", "optimiser states", "activations and temporary")
    training = dict(zip(parts, (shards, shards, 2 * shards, activations), strict=True))
    return Memory(training, PARAMETERS, resident_engine(config, PARAMETERS))


@pytest.fixture
def simple(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("memory", "fitting"):
        monkeypatch.setattr(f"dapo_lit.forecast.{module}.training_memory", simple_memory)
    monkeypatch.setattr("dapo_lit.forecast.fitting._KNOWN", {})


def peak(config: Config, tokens: int) -> float:
    return sum(simple_memory(changed(config, micro_batch_tokens=tokens)).training.values())


def test_on_a_cpu_auto_is_the_number_of_the_default_run():
    given = composed("trainer.micro_batch_tokens=4096", "trainer.activation_checkpointing=none")
    auto = composed("trainer.micro_batch_tokens=auto", "trainer.activation_checkpointing=auto")
    assert sized(auto)[0] == given == composed()
    assert "4096" in sized(auto)[1]
    assert sized(given) == (given, "")


def test_on_a_gpu_the_micro_batch_is_the_largest_that_fits_into_what_the_engine_leaves(simple):
    config = composed(*SMALL, "trainer.activation_checkpointing=none")
    room = 0.5 * (peak(config, 12288) + peak(config, 12288 + STEP_TOKENS))
    tokens, memory = largest_micro_batch(config, room)
    assert tokens == 12288
    assert sum(memory.training.values()) <= room
    engine = 4 * memory.parameters * 0.5 / GIB  # the torch sampler's weights, in bfloat16 as training computes
    fit = fitted(config, int((room + engine) / USABLE * GIB) + 1)
    assert fit.config.trainer.micro_batch_tokens == tokens
    assert f"trainer.micro_batch_tokens={tokens}" in fit.words


def test_layers_are_recomputed_only_where_the_memory_asks_for_it(simple):
    config = composed(*SMALL)
    whole = 32 * 16 * 256  # tokens of a mini-batch; 16,384 are enough
    assert fitted(config, 80_000_000_000).config.trainer.activation_checkpointing == "none"
    assert fitted(config, 80_000_000_000).config.trainer.micro_batch_tokens == min(65536, whole)
    enough = peak(changed(config, activation_checkpointing="none"), 16384)
    scarce = fitted(config, int(0.9 * enough / USABLE * GIB)).config.trainer
    assert scarce.activation_checkpointing == "full"
    assert scarce.tokens_at_once > 8192


def test_the_cache_gets_what_training_leaves_and_more_if_the_engine_sleeps(simple):
    vllm = ("rollout=vllm", "rollout.vllm.kv_cache_gb=auto", "rollout.max_batch_size=100000")
    awake, asleep = (
        fitted(composed(*SMALL, *vllm, f"rollout.vllm.sleep={sleep}"), 8_000_000_000).config
        for sleep in ("false", "true")
    )
    room = USABLE * 8e9 / GIB
    used = peak(
        changed(awake, activation_checkpointing=awake.trainer.activation_checkpointing), awake.trainer.tokens_at_once
    )
    assert used < room - ENGINE_RESERVE_GIB - room / 4  # a quarter is kept for the cache before training is sized
    assert awake.rollout.vllm.cache_gb + used + ENGINE_RESERVE_GIB == pytest.approx(room, abs=0.1)
    woken = simple_memory(asleep).state + ENGINE_RESERVE_GIB + engine_weights(asleep, PARAMETERS)
    assert asleep.rollout.vllm.cache_gb == pytest.approx(room - woken, abs=0.01)
    assert asleep.rollout.vllm.cache_gb > awake.rollout.vllm.cache_gb
    assert asleep.trainer.tokens_at_once >= awake.trainer.tokens_at_once
    assert ENGINE_RESERVE_GIB * GIB == RESERVED_BYTES
    few = fitted(composed(*SMALL, *vllm[:2], "rollout.max_batch_size=2"), 80_000_000_000).config
    assert few.rollout.vllm.cache_gb < 0.5  # two sequences need no more


def test_what_cannot_fit_is_refused_with_what_can_be_set(simple):
    with pytest.raises(ConfigError, match=r"^trainer\.micro_batch_tokens.*=auto: .* GiB .*; set .*$"):
        fitted(composed(*SMALL), 10_000_000)
    with pytest.raises(ConfigError, match=r"micro_batch_tokens=auto .*the gradient"):
        composed("trainer.micro_batch_tokens=auto", "algorithm.token_level_denominator=microbatch")
    with pytest.raises(ValueError, match="chosen by the command `train`"):
        _ = composed("trainer.micro_batch_tokens=auto").trainer.tokens_at_once


def test_what_was_chosen_is_what_the_run_records(tmp_path):
    """A run with `auto` on a CPU has the numbers in its config, and its rows are those of the numbers."""
    run_cli(
        "+experiment=four_sums", "budget.steps=1", "evaluation.every=0", "trainer.micro_batch_tokens=auto",
        "trainer.activation_checkpointing=auto", f"runs_dir={tmp_path}", "logger.progress=none",
        cwd=tmp_path,
    )  # fmt: skip
    [record] = tmp_path.rglob("config.yaml")
    assert yaml.safe_load(record.read_text())["trainer"]["micro_batch_tokens"] == 4096


def test_the_plan_answers_with_the_largest_micro_batch_and_the_fewest_machines(simple):
    config = planned(
        *SMALL, "trainer=fsdp", "trainer.devices=2", "trainer.num_nodes=4", "trainer.micro_batch_tokens=4096"
    )
    memory = simple_memory(config)
    (largest, fewest), nodes = what_fits(config, memory)
    assert largest.endswith(": trainer.micro_batch_tokens=16384 (set: 4096)")
    assert fewest.endswith(": trainer.num_nodes=1 (set: 4)")
    assert nodes == 1
    assert fewest_nodes(config, lambda _: False) is None


def test_the_fewest_machines_are_any_number_and_what_an_awake_engine_keeps_counts(simple):
    config = planned(
        *SMALL, "trainer=fsdp", "trainer.devices=2", "trainer.num_nodes=3", "trainer.micro_batch_tokens=4096",
        "rollout=vllm", "rollout.vllm.kv_cache_gb=90",
    )  # fmt: skip
    for needed in (1, 2, 3, 5, 33, 64):
        assert fewest_nodes(config, lambda of, needed=needed: of.trainer.num_nodes >= needed) == needed
    assert fewest_nodes(changed(config, num_nodes=100), lambda of: of.trainer.num_nodes >= 99) == 99
    memory = simple_memory(config)
    assert memory.peak > 90  # of 74.5 GiB, on any number of machines
    assert not any("fewest machines" in line for line in what_fits(config, memory)[0])


def test_the_plan_names_nothing_that_the_config_has(simple):
    small = {"memory_gb": 0.9}
    config = planned(*SMALL, "trainer.micro_batch_tokens=16384", "trainer.activation_checkpointing=none")
    sized_down = config.model_copy(update={"hardware": config.hardware.__class__(**config.hardware.__dict__ | small)})
    for choice, offered in (("none", True), ("full", False)):
        of = changed(sized_down, activation_checkpointing=choice, micro_batch_tokens=65536)
        lines, _ = what_fits(of, simple_memory(of))
        assert lines
        assert any("activation_checkpointing=full" in line for line in lines) == offered


@pytest.mark.parametrize(("options", "precision"), [((), "highest"), (("trainer.tf32=true",), "high")], ids=str)
def test_float32_products_are_computed_as_the_key_says(options, precision, tmp_path):
    (tmp_path / "said.py").write_text(
        "import torch\nfrom lightning import Callback\n\n\nclass Said(Callback):\n"
        "    def on_train_start(self, *_):\n        print('products', torch.get_float32_matmul_precision())\n"
    )
    ended = run_cli(
        "+experiment=four_sums", "budget.steps=1", "evaluation.every=0", "+callbacks.said={_target_: said.Said}",
        "logger.progress=none", *options, cwd=tmp_path,
    )  # fmt: skip
    assert f"products {precision}\n" in ended.stdout, ended.stderr


def test_float32_products_that_are_rounded_are_said():
    gpu = torch.device("cuda")
    rounded = composed("trainer=fsdp", "trainer.sharding.dtype=null")
    assert "trainer.tf32=false" in precision_warnings(rounded, gpu)[0]
    assert precision_warnings(composed("trainer=fsdp", "trainer.sharding.dtype=null", "trainer.tf32=false"), gpu) == ()
    assert precision_warnings(composed("trainer=gpu"), gpu) == ()  # it computes in bfloat16
    assert precision_warnings(rounded, torch.device("cpu")) == ()
