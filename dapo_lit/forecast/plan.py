"""Estimates what a run needs: `python -m dapo_lit.plan +experiment=paper_qwen2_5_32b hardware=h800`.

Prints memory per GPU by part, time per rollout step by phase, GPU-hours and cost, and the error of the time model on
published steps. Needs no GPU and launches nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from dapo_lit.forecast.duration import FOLDER_BYTES_S, HELD_OUT_ERROR, Engines, Phase, Shape, Step, phases
from dapo_lit.forecast.hardware import PlanConfig, architecture
from dapo_lit.screen import print_table

if TYPE_CHECKING:
    from dapo_lit.forecast.memory import Memory


VLLM_MEMORY_FRAC = 0.92
"""Share of a GPU's memory that a server of vLLM takes by default."""


def plan(config: PlanConfig, overrides: list[str]) -> None:
    from dapo_lit.forecast.memory import training_memory

    doing = "simulating a training micro-batch, layer by layer; quick=true takes less time"
    with Console(stderr=True).status(doing):  # on a terminal only
        memory = training_memory(config, config.quick)
    gpus = config.trainer.devices * config.trainer.num_nodes
    print(f"{config.policy.name} ({memory.parameters / 1e9:.1f}B parameters) on {gpus} x {config.hardware.name}")
    print_memory(config, memory)
    found = step_phases(config, memory)
    print_time(config, found, gpus)


def step_phases(config: PlanConfig, memory: Memory) -> list[Phase]:
    """The phases of a rollout step of this config."""
    algorithm = config.algorithm
    groups = float(algorithm.num_prompts)
    if algorithm.techniques.dynamic_sampling:
        groups /= max(config.workload.keep_frac, 1e-3)
        if at_once := algorithm.dynamic_sampling.request_groups:  # in whole requests
            groups = float(-(-groups // at_once) * at_once)
    critic = algorithm.critic is not None
    step = Step(
        num_prompts=algorithm.num_prompts,
        samples=algorithm.samples_per_prompt,
        limit_tokens=config.task.max_response_tokens,
        groups_generated=groups,
        epochs=algorithm.epochs,
        scored=(algorithm.old_logprobs == "recompute") + bool(algorithm.kl.beta) + critic,
        recomputes=float(config.trainer.activation_checkpointing == "full"),
        trained_models=1 + critic,
        updates=algorithm.epochs * -(-algorithm.num_prompts // algorithm.minibatch_prompts),
        state_bytes=28.0 if config.policy.dtype == "float32" else 14.0,
        compiled=config.compiles(config.trainer.accelerator != "cpu"),
    )
    gpus = config.trainer.devices * config.trainer.num_nodes
    shape = Shape.of(architecture(config.policy))
    return phases(shape, step, config.workload, config.hardware, gpus, engines(config, memory), link_bytes_s(config))


def engines(config: PlanConfig, memory: Memory) -> Engines:
    """The inference engines that the config starts: a server's on GPUs of its own, others on those of the trainer."""
    rollout, vllm = config.rollout, config.rollout.vllm
    slots, gpus = rollout.max_batch_size, config.trainer.devices * config.trainer.num_nodes
    capacity, weights = config.hardware.memory_gb * 1e9, 2.0 * memory.parameters
    if rollout.engine == "torch":
        return Engines(gpus, 1, slots, max(capacity - memory.state * 2**30 - weights, 1.0))
    if vllm.placement == "colocated":
        return Engines(
            gpus / vllm.tensor_parallel, vllm.tensor_parallel, slots, vllm.kv_cache_gb * 2**30 * vllm.tensor_parallel
        )
    cache = VLLM_MEMORY_FRAC * capacity * vllm.tensor_parallel - weights
    return Engines(len(vllm.server.urls), vllm.tensor_parallel, slots, max(cache, 1.0))


def link_bytes_s(config: PlanConfig) -> float:
    """The way of the weights to an engine."""
    server = config.rollout.engine == "vllm" and config.rollout.vllm.placement == "server"
    if server and config.rollout.vllm.server.transfer == "folder":
        return FOLDER_BYTES_S / 2  # written, then read
    across = server or config.trainer.num_nodes > 1
    return 1e9 * (config.hardware.network_gb_s if across else config.hardware.nvlink_gb_s)


def print_memory(config: PlanConfig, memory: Memory) -> None:
    from dapo_lit.forecast.memory import GIB

    capacity = config.hardware.memory_gb * 1e9 / GIB
    weights, cache, spare = rollout_memory(config, memory, capacity)
    sizes = memory.training | memory.engine | {"peak of training": memory.peak}
    sizes |= {"engine weights (rollouts)": weights, "keys and values (rollouts)": max(cache, 0.0)}
    rows = [(part, f"{size:.1f}") for part, size in sizes.items()]
    print_table(
        ("part", "GiB"), rows, left=("part",), title="memory per GPU (GiB), from the second micro-batch of an update on"
    )
    if memory.peak <= capacity and spare >= 0:
        print(f"fits into {config.hardware.memory_gb:.0f} GB, {capacity - memory.peak:.1f} GiB to spare in training")
        return
    if memory.peak <= capacity:
        print(
            f"does not fit into {config.hardware.memory_gb:.0f} GB: engine weights and cache next to the training state"
        )
        print(f"rollout.vllm.kv_cache_gb is at most {max(cache + spare, 0.0):.1f} there")
        return
    print(
        f"does not fit into {config.hardware.memory_gb:.0f} GB: training. What helps: "
        "trainer.activation_checkpointing=full, fewer trainer.micro_batch_tokens, rollout.vllm.sleep=true, more GPUs"
    )


def rollout_memory(config: PlanConfig, memory: Memory, capacity: float) -> tuple[float, float, float]:
    """GiB of the engine's weights and cache on a GPU of the trainer during rollouts, and what is left."""
    from dapo_lit.forecast.memory import GIB, GRAPHS_GIB, engine_weights

    rollout = config.rollout
    if rollout.engine == "vllm" and rollout.vllm.placement == "server":
        return 0.0, 0.0, capacity - memory.state
    weights = engine_weights(config, memory.parameters)
    if rollout.engine == "torch":
        return weights, engines(config, memory).cache_bytes / GIB, 0.0
    cache = rollout.vllm.kv_cache_gb
    return weights, cache, capacity - memory.state - weights - cache - GRAPHS_GIB


def print_time(config: PlanConfig, found: list[Phase], gpus: int) -> None:
    total = sum(phase.seconds for phase in found)
    rows = [(phase.name, f"{phase.seconds:.1f}", f"{phase.seconds / total:.2f}", phase.bound) for phase in found]
    columns, title = ("phase", "s", "share", "bound"), "time per rollout step (s), modelled"
    print_table(columns, [*rows, ("step", f"{total:.1f}", "1.00", "")], left=("phase", "bound"), title=title)
    hours = total * config.budget.steps * config.runs * gpus / 3600
    price = config.price_per_hour
    cost = f", cost {hours * price:,.0f}" if price else "; price_per_hour gives a cost"
    print(f"runs x steps: {config.runs} x {config.budget.steps}; {hours:,.0f} GPU-hours{cost}")
    ranges = {kind: f"{low:+.0%} to {high:+.0%}" for kind, (low, high) in HELD_OUT_ERROR.items()}
    print(
        f"error of this model on published steps, to which it is not fitted: {ranges['step']}, on their phases "
        f"{ranges['phase']}; on held-out rows of training alone {ranges['training']} (docs/plan.md)"
    )
