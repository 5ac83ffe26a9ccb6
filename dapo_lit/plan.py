"""Estimates what a run needs: `python -m dapo_lit.plan +experiment=paper_qwen2_5_32b hardware=h800`.

Prints memory per GPU by part, time per rollout step by phase, GPU-hours and cost, the nearest change that fits if the
run does not, and the error of the time model on published runs. Needs no GPU and launches nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.status import Status

from dapo_lit.cli.command import run_command
from dapo_lit.config.commands import PlanConfig
from dapo_lit.forecast.duration import FITTED, PREDICTED, Phase, Shape, Step, fitted, phases, seconds
from dapo_lit.screen import print_table

if TYPE_CHECKING:
    from dapo_lit.forecast.memory import Memory


RECOMPUTES = {"none": 0.0, "selective": 0.5, "full": 1.0}


def plan(config: PlanConfig, overrides: list[str]) -> None:
    from dapo_lit.forecast.memory import training_memory

    with progress("simulating a training micro-batch, layer by layer; quick=true takes less time"):
        memory = training_memory(config, config.quick)
    gpus = config.trainer.devices * config.trainer.num_nodes
    print(f"{config.policy.name} ({memory.parameters / 1e9:.1f}B parameters) on {gpus} x {config.hardware.name}")
    print_memory(config, memory)
    found = step_phases(config, memory)
    print_time(config, found, gpus)
    print_anchors()


def progress(doing: str) -> Status:
    """Says what takes so long, on a terminal only."""
    return Console(stderr=True).status(doing)


def step_phases(config: PlanConfig, memory: Memory) -> list[Phase]:
    """The phases of a rollout step of this config."""
    assert config.policy.architecture is not None
    algorithm = config.algorithm
    groups: float | None = None if algorithm.techniques.dynamic_sampling else float(algorithm.num_prompts)
    at_once = algorithm.dynamic_sampling.request_groups
    if groups is None and at_once is not None:  # in whole requests
        needed = algorithm.num_prompts / max(config.workload.keep_frac, 1e-3)
        groups = float(-(-needed // at_once) * at_once)
    step = Step(
        num_prompts=algorithm.num_prompts,
        samples=algorithm.samples_per_prompt,
        limit_tokens=config.task.max_response_tokens,
        epochs=algorithm.epochs,
        groups_generated=groups,
        rescored=algorithm.old_logprobs == "recompute",
        recomputes=RECOMPUTES[config.trainer.activation_checkpointing],
        critic=algorithm.critic is not None,
    )
    gpus = config.trainer.devices * config.trainer.num_nodes
    shape = Shape.of(config.policy.architecture)
    return phases(shape, step, config.workload, config.hardware, gpus, fitted(), memory.state)


def print_memory(config: PlanConfig, memory: Memory) -> None:
    from dapo_lit.forecast.memory import GIB, nearest_fit

    capacity = config.hardware.memory_gb * 1e9 / GIB
    weights, cache, spare = rollout_memory(config, memory, capacity)
    sizes = memory.training | memory.engine | {"peak of training": memory.peak}
    sizes |= {"engine weights (rollouts)": weights, "keys and values (rollouts)": max(cache, 0.0)}
    rows = [(part, f"{size:.1f}") for part, size in sizes.items()]
    print_table(("part", "GiB"), rows, left=("part",), title="memory a GPU (GiB), one training micro-batch")
    if memory.peak <= capacity and cache > 0 and spare >= 0:
        print(f"fits into {config.hardware.memory_gb:.0f} GB, {capacity - memory.peak:.1f} GiB to spare in training")
        return
    what = "training" if memory.peak > capacity else "engine weights and cache next to the training state"
    print(f"does not fit into {config.hardware.memory_gb:.0f} GB: {what}")
    with progress("looking for a change that fits") as status:
        change = nearest_fit(config, memory, capacity, lambda name: status.update(f"would {name} fit?"))
    print(f"nearest change that does: {change}" if change else "no single change of those tried makes it fit")


def rollout_memory(config: PlanConfig, memory: Memory, capacity: float) -> tuple[float, float, float]:
    """GiB of the engine's weights and cache on a GPU during rollouts, and what is left.

    vLLM in the trainer's processes has the cache that the config gives it; any other engine what the workload assumes.
    """
    from dapo_lit.forecast.memory import GIB, GRAPHS_GIB, engine_weights

    if config.rollout.engine == "vllm" and config.rollout.vllm.placement == "colocated":
        weights, cache = engine_weights(config, memory.parameters), config.rollout.vllm.kv_cache_gb
        graphs = 0.0 if config.rollout.vllm.eager else GRAPHS_GIB
        return weights, cache, capacity - memory.state - weights - cache - graphs
    weights = 2 * memory.parameters / min(config.workload.engine_tensor_parallel, config.trainer.devices) / GIB
    return weights, capacity * config.workload.engine_memory_frac - memory.state - weights, 0.0


def print_time(config: PlanConfig, found: list[Phase], gpus: int) -> None:
    total = sum(phase.seconds for phase in found)
    rows = [(phase.name, f"{phase.seconds:.1f}", f"{phase.seconds / total:.2f}", phase.bound) for phase in found]
    columns, title = ("phase", "s", "share", "bound"), "time a rollout step (s), modelled"
    print_table(columns, [*rows, ("step", f"{total:.1f}", "1.00", "")], left=("phase", "bound"), title=title)
    hours = total * config.budget.steps * config.runs * gpus / 3600
    price = config.price_per_hour
    cost = f", cost {hours * price:,.0f}" if price else "; price_per_hour gives a cost"
    print(f"{config.runs} x {config.budget.steps} steps: {hours:,.0f} GPU-hours{cost}")


def print_anchors() -> None:
    """Prints the error of the time model on the run that it was fitted to, and on others."""
    efficiency = fitted()
    rows = []
    for kind, anchors in (("fitted", (FITTED,)), ("predicted", PREDICTED)):
        for anchor in anchors:
            modelled = seconds(anchor, efficiency)
            for name, published in anchor.published.items():
                error = modelled[name] / published - 1
                numbers = f"{published:.0f}", f"{modelled[name]:.0f}", f"{error:+.0%}"
                rows.append((f"{kind}: {anchor.name}", name, *numbers))
    columns = ("run", "", "published s", "modelled s", "error")
    print_table(columns, rows, left=("run", ""), title="the model of time against published runs")
    print("assumptions where the sources say nothing: docs/plan.md")


def main() -> None:
    sys.exit(run_command(plan, PlanConfig, "plan"))


if __name__ == "__main__":
    main()
