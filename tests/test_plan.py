"""The plan: the shipped 32B config fits, the simulation agrees with a measurement, the arithmetic with hand work."""

import math

import pytest
import torch
from composition import tree_of
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM

from dapo_lit.cli.config_tree import resolved
from dapo_lit.config import parse_as
from dapo_lit.config.commands import PlanConfig
from dapo_lit.forecast.duration import FITTED, PREDICTED, Efficiency, Shape, Step, fitted, phases, seconds
from dapo_lit.forecast.memory import GIB, GRAPHS_GIB, Memory, nearest_fit, resident_engine, training_memory
from dapo_lit.plan import plan
from dapo_lit.policy.attention import layout
from dapo_lit.policy.head import token_logprobs
from dapo_lit.policy.wrap import run, wrap_layers


def composed(*overrides: str) -> PlanConfig:
    return parse_as(resolved(tree_of(overrides, "plan")), PlanConfig)


def test_the_shipped_32b_config_fits_80_gb_on_128_gpus():
    config = composed("+experiment=paper_qwen2_5_32b", "hardware=h800", "quick=true")
    assert config.trainer.devices * config.trainer.num_nodes == 128
    memory = training_memory(config, quick=True)
    assert memory.parameters == pytest.approx(32.76e9, rel=1e-3)
    assert memory.peak * GIB < 80e9
    # Shards and two states of 4 bytes a parameter, gradients as large as the shards at least.
    assert memory.training["parameters, sharded"] * GIB == pytest.approx(4 * memory.parameters / 128, rel=0.01)
    assert memory.training["optimiser states"] == pytest.approx(2 * memory.training["parameters, sharded"], rel=0.01)
    # Full checkpointing keeps the input of each layer: layers x tokens x hidden in bf16.
    assert memory.training["activations and temporary"] * GIB > 64 * 32768 * 5120 * 2


MEASURED = (
    "policy=micro", "policy.random_init=false", "policy.path=somewhere", "policy.architecture.num_hidden_layers=3",
    "policy.architecture.hidden_size=256", "policy.architecture.intermediate_size=1024",
    "+policy.architecture.vocab_size=2048", "trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=1",
    "trainer.sharding.dtype=null", "trainer.micro_batch_tokens=4096", "trainer.activation_checkpointing=none",
    "policy.architecture.max_position_embeddings=4096", "task.max_response_tokens=240",
)  # fmt: skip


MINE = "hardware={name: mine, memory_gb: 48, tflops: 362, bandwidth_gb_s: 864, network_gb_s: 25, nvlink_gb_s: 32}"
SINGLE = ("trainer.strategy=single",)


def measured_peak(config: PlanConfig) -> float:
    """Bytes at the peak of a real forward and backward pass, with the parameters."""
    architecture = dict(config.policy.architecture or {})
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(architecture.pop("model_type"), **architecture)
    ).eval()
    if config.trainer.sharding.dtype is not None:
        wrap_layers(model, compute_in=getattr(torch, config.trainer.sharding.dtype))
    tokens = config.trainer.micro_batch_tokens
    packed = layout([256] * (tokens // 256))
    ids, rows = torch.zeros(tokens, dtype=torch.int64), torch.arange(tokens // 10, tokens)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        logprobs, _ = run(model, token_logprobs, ids, packed, rows, ids[rows], temperature=1.0)
        logprobs.sum().backward()
    live = peak = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak + sum(p.numel() * 4 for p in model.parameters())


@pytest.mark.parametrize(
    "options",
    [(), SINGLE, (*SINGLE, "trainer.sharding.dtype=bfloat16", "trainer.micro_batch_tokens=256")],
    ids=["one shard", "single", "16-bit copies"],
)
def test_the_simulated_peak_of_a_small_model_is_that_of_a_real_step(options):
    config = composed(*MEASURED, "trainer.micro_batch_tokens=1024", *options)
    parts = training_memory(config).training
    # A single rank of FSDP gathers into a second copy of the parameters; the states are added by arithmetic.
    expected = sum(parts.values()) - parts["optimiser states"] - parts["parameters, gathered"]
    assert expected * GIB == pytest.approx(measured_peak(config), rel=0.05)  # the 16-bit copies are 17 %


def test_the_simulation_splits_the_head_as_the_planned_accelerator_does(monkeypatch):
    devices = []

    def rows(vocabulary: int, device: str) -> int:
        devices.append(device)
        return 64

    monkeypatch.setattr("dapo_lit.forecast.memory.chunk_rows", rows)
    for accelerator in ("cpu", "gpu", "auto"):
        sizes = ("policy.architecture.num_hidden_layers=1", "trainer.micro_batch_tokens=256")
        training_memory(composed(*MEASURED, *sizes, f"trainer.accelerator={accelerator}"))
    assert devices == ["cpu", "cuda", "cuda"]


def test_a_value_model_and_a_reference_are_counted_and_only_adapters_have_optimiser_states():
    plain, ppo, lora = (
        training_memory(composed(*MEASURED, "policy.architecture.num_hidden_layers=2", *options))
        for options in ((), ("algorithm=ppo",), ("+policy/lora=all_matrices", "policy.lora.rank=4"))
    )
    shards = plain.training["parameters, sharded"]
    assert plain.training["optimiser states"] == pytest.approx(2 * shards)
    assert ppo.training["reference policy, sharded"] == pytest.approx(shards)  # float32 as the policy
    assert ppo.training["value model, shards and states"] == pytest.approx(3 * shards)  # a tied head is the embedding
    assert ppo.training["value model, gradients"] == pytest.approx(shards)
    assert ppo.state == pytest.approx(plain.state + 4 * shards)
    assert ppo.peak == pytest.approx(plain.peak + 5 * shards)
    # Rank 4 on q, k, v and o of 256 x 256 and three matrices of 256 x 1,024, in 2 layers; two states of 4 bytes.
    adapters = 2 * 4 * (4 * (256 + 256) + 3 * (256 + 1024))
    assert lora.training["optimiser states"] * GIB == pytest.approx(2 * 4 * adapters)
    assert lora.state < plain.state / 2
    assert plain.parameters < lora.parameters < 1.1 * plain.parameters


def test_what_an_engine_keeps_during_training_is_counted_and_sleep_gives_it_back():
    def engine(*options: str) -> dict[str, float]:
        return resident_engine(composed("+experiment=qwen2_5_7b_lora", *options), round(7.6e9))

    weights = 7.6e9 * 2 / GIB
    kept = engine("rollout.vllm.kv_cache_gb=20", "rollout.vllm.eager=false", "rollout.vllm.sleep=false")
    assert kept == {
        "engine weights": pytest.approx(weights), "engine keys and values": 20.0, "engine CUDA graphs": GRAPHS_GIB,
    }  # fmt: skip
    assert engine("rollout.vllm.eager=false", "rollout.vllm.sleep=true") == {"engine CUDA graphs": GRAPHS_GIB}
    served = ("rollout.vllm.placement=server", "rollout.vllm.server.urls=[http://a:1]", "rollout.vllm.server.folder=f")
    assert engine(*served) == {}
    assert engine("rollout=torch") == {"engine weights": pytest.approx(weights)}
    shared = resident_engine(composed("+experiment=paper_qwen2_5_32b", "rollout.vllm.sleep=false"), round(32.8e9))
    assert shared["engine weights"] == pytest.approx(32.8e9 * 2 / 4 / GIB)


def test_the_plan_of_7b_with_adapters_on_48_gb_says_that_the_engine_does_not_leave_room(capsys):
    """Training takes 26 GiB there, and vLLM with its weights and 20 GiB of cache as much again."""
    options = ("+experiment=qwen2_5_7b_lora", "rollout.vllm.kv_cache_gb=20", "rollout.vllm.sleep=false", "quick=true")
    plan(composed(*options, MINE, "price_per_hour=2.0", "runs=3"), [])
    printed = capsys.readouterr().out
    assert "rollout.vllm.sleep=true" in printed
    assert "cost" in printed


def test_what_does_not_fit_gets_a_change_that_does(monkeypatch):
    tight = composed(*MEASURED)
    memory = training_memory(tight, quick=True)
    change = nearest_fit(tight, memory, 0.8 * memory.peak, print)
    assert change is not None
    assert change.startswith("trainer.activation_checkpointing")
    tried = []

    def too_large(config: PlanConfig, quick: bool) -> Memory:
        trainer = config.trainer
        tried.append((trainer.activation_checkpointing, trainer.micro_batch_tokens, trainer.num_nodes))
        return Memory({"activations and temporary": 1.0}, 1, {})

    monkeypatch.setattr("dapo_lit.forecast.memory.training_memory", too_large)
    assert nearest_fit(tight, memory, 0.5, print) is None
    weaker = [("selective", 4096, 1), ("full", 4096, 1), ("none", 2048, 1), ("none", 1024, 1)]
    assert tried == [*weaker, *(("none", 4096, nodes) for nodes in (2, 4, 8, 16))]


def test_time_of_each_phase_is_the_hand_worked_one():
    config = composed("hardware=h100")
    shape = Shape(layers=2, hidden=8, mlp=16, heads=2, key_heads=1, vocabulary=32, tied=True)
    assert shape.body == 2 * (8 * 4 * (4 + 2) + 3 * 8 * 16)  # projections of 2 + 2 x 1 heads of 4, three matrices
    assert shape.parameters == shape.body + 256
    assert shape.cache_bytes == 2 * 2 * 1 * 4 * 2
    step = Step(num_prompts=4, samples=2, limit_tokens=100, groups_generated=4, recomputes=0.0)
    work = config.workload.model_copy(
        update={"prompt_tokens": 0, "mean_response_tokens": 10.0, "length_spread": 1e-9, "engine_tensor_parallel": 1}
    )
    found = {p.name: p for p in phases(shape, step, work, config.hardware, 1, Efficiency(0.5, 0.5, 0.25), 0.0)}
    forward = 2 * shape.body * 80 + 2 * 256 * 80 + 2 * 2 * 8 * 8 * 100  # 8 sequences of 10 tokens
    assert found["old log-probs"].seconds == pytest.approx(forward / (989e12 * 0.5))
    backward = 4 * shape.body * 80 + 4 * 256 * 80 + 5 * 2 * 8 * 8 * 100
    assert found["updates"].seconds == pytest.approx((forward + backward) / (989e12 * 0.25))
    one = (2 * shape.parameters + 50 * shape.cache_bytes) / 3350e9 / 0.5
    assert found["decode"].seconds == pytest.approx(100 * one)  # the longest response alone takes longer than all
    assert found["decode"].bound == "longest response"


def test_the_fit_is_exact_on_its_run_and_the_predictions_are_left_as_they_are():
    modelled = seconds(FITTED, fitted())
    for name, published in FITTED.published.items():
        assert modelled[name] == pytest.approx(published)
    for anchor in PREDICTED:  # within a factor of two: what the page says of them
        assert abs(math.log(seconds(anchor, fitted())["step"] / anchor.published["step"])) < math.log(2)


def test_a_value_model_costs_a_scoring_pass_and_twice_the_updates():
    config = composed("hardware=h100")
    shape = Shape.of(composed("policy=qwen2_5_7b").policy.architecture or {})
    with_critic, without = (
        {p.name: p.seconds for p in phases(shape, step, config.workload, config.hardware, 8, fitted(), 10.0)}
        for step in (Step(32, 16, 8192, critic=True), Step(32, 16, 8192))
    )
    assert with_critic["updates"] == pytest.approx(2 * without["updates"])
    assert with_critic["old log-probs"] == pytest.approx(2 * without["old log-probs"])
