"""Estimates what a run needs: `python -m dapo_lit.plan +experiment=paper_qwen2_5_32b hardware=h800`.

Prints memory per GPU by part, time per rollout step by phase, GPU-hours and cost, and the error of the time model on
published steps. Needs no GPU and launches nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.status import Status

from ablations.compare.statistics import pairs_needed
from ablations.screen import print_table
from dapo_lit.config import Config
from dapo_lit.forecast.architecture import architecture
from dapo_lit_tools.planning.duration import (
    FOLDER_BYTES_S,
    HELD_OUT_ERROR,
    UPDATE_S,
    Engines,
    Phase,
    Shape,
    Step,
    phases,
)
from dapo_lit_tools.planning.hardware import PlanConfig

if TYPE_CHECKING:
    from dapo_lit.forecast.memory import Memory


SCHEMA = "dapo_lit/plan/1"
"""Of what --json prints: schemas/plan.json."""
MOST_NODES = 1024
"""Machines that a plan looks for at most."""
VLLM_MEMORY_FRAC = 0.92
"""Share of a GPU's memory that a server of vLLM takes by default."""


def plan(config: PlanConfig, overrides: list[str]) -> None:
    from dapo_lit.forecast.fitting import fitted
    from dapo_lit.forecast.memory import training_memory

    with doing("simulating a training micro-batch, layer by layer"):
        fit = fitted(config, None if config.trainer.accelerator == "cpu" else round(config.hardware.memory_gb * 1e9))
        config = cast(PlanConfig, fit.config)
        memory = training_memory(config, config.quick)
    as_text = config.answer != "json"
    if as_text:
        if fit.words:
            print(fit.words)
        of_trainer, of_servers = gpus(config)
        beside = f" and {of_servers} of servers" if of_servers else ""
        where = f"{of_trainer} x {config.hardware.name}{beside}"
        print(f"{config.policy.name} ({memory.parameters / 1e9:.1f}B parameters) on {where}")
        print_memory(config, memory)
        print_time(step_phases(config, memory))
    with doing("simulating other micro-batches: what fits"):
        lines, nodes = what_fits(config, memory)
    found = clusters(config, memory, nodes)
    if not as_text:
        advice = [*([fit.words] if fit.words else []), *lines]
        print(json.dumps(described(config, memory, advice, found), indent=1))
        return
    print("\n".join(lines))
    print_price(config, found)


def doing(what: str) -> Status:
    """Says on the error stream what takes long, with a spinner on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{what} ...")
    return console.status(what)


@dataclass(frozen=True)
class Cluster:
    """A number of machines, and what the runs of the config take on it."""

    nodes: int
    gpus: int
    """Servers' included."""
    step_seconds: float
    days: float
    """Of one run."""
    gpu_hours: float
    """Of all runs."""
    fits: bool
    """Into the memory of the cards."""


def clusters(config: PlanConfig, memory: Memory, fewest: int | None) -> list[Cluster]:
    """The config's own machines and the fewest that fit; with `days`, also twice, four times ... as many, up to those
    that keep to it even where the model is as much too fast as it was on a published step.

    Memory is that of the config's own machines: it decides on an engine's cache only.
    """
    from dapo_lit.forecast.fitting import changed
    from dapo_lit.forecast.memory import GIB

    own = fits(config, memory, config.hardware.memory_gb * 1e9 / GIB)

    def on(nodes: int) -> Cluster:
        of = cast(PlanConfig, changed(config, num_nodes=nodes))
        phases_there = step_phases(of, memory)
        seconds = sum(phase.seconds for phase in phases_there)
        days, hours = seconds * of.budget.steps / 86_400, gpu_hours(of, phases_there)
        return Cluster(nodes, sum(gpus(of)), seconds, days, hours, nodes >= fewest if fewest else own)

    numbers = {config.trainer.num_nodes} | ({fewest} if fewest else set())
    if config.days and fewest:
        nodes = fewest
        while published(on(nodes).days)[1] > config.days and nodes < MOST_NODES:
            nodes *= 2
            numbers.add(nodes)
    return [on(nodes) for nodes in sorted(numbers)]


def published(modelled: float) -> tuple[float, float]:
    """Where a time that was modelled lies if the model errs as it did on published steps.

    >>> [round(end) for end in published(100.0)]
    [83, 182]
    """
    fast, slow = HELD_OUT_ERROR["step"]
    return modelled / (1 + slow), modelled / (1 + fast)


def described(config: PlanConfig, memory: Memory, advice: list[str], found_clusters: list[Cluster]) -> dict[str, Any]:
    """The plan as schemas/plan.json describes it."""
    from dapo_lit.forecast.memory import GIB

    capacity, (of_trainer, of_servers) = config.hardware.memory_gb * 1e9 / GIB, gpus(config)
    weights, cache, spare = rollout_memory(config, memory, capacity)
    found = step_phases(config, memory)
    hours = gpu_hours(config, found)
    return {
        "schema": SCHEMA,
        "parameters": memory.parameters,
        "gpus": of_trainer,
        "server_gpus": of_servers,
        "hardware": config.hardware.name,
        "memory_gib": {
            "capacity": capacity,
            "training": memory.training | memory.engine,
            "peak_of_training": memory.peak,
            "engine_weights": weights,
            "engine_cache": max(cache, 0.0),
            "spare_in_rollouts": spare,
        },
        "fits": fits(config, memory, capacity),
        "advice": advice,
        "step_seconds": sum(phase.seconds for phase in found),
        "phases": [{"phase": phase.name, "seconds": phase.seconds, "bound": phase.bound} for phase in found],
        "runs": config.runs,
        "steps": config.budget.steps,
        "gpu_hours": hours,
        "gpu_hours_range": list(published(hours)),
        "cost": hours * config.price_per_hour if config.price_per_hour else None,
        "clusters": [asdict(cluster) for cluster in found_clusters],
        "error_on_published": {kind: list(ends) for kind, ends in HELD_OUT_ERROR.items()},
    }


def gpus(config: PlanConfig) -> tuple[int, int]:
    """GPUs of the trainer, and those of inference servers, which are held as long."""
    trainer, vllm = config.trainer, config.rollout.vllm
    served = config.rollout.engine == "vllm" and vllm.placement == "server"
    return trainer.devices * trainer.num_nodes, len(vllm.server.urls) * vllm.tensor_parallel if served else 0


def gpu_hours(config: PlanConfig, found: list[Phase]) -> float:
    """Of all runs."""
    return sum(phase.seconds for phase in found) * config.budget.steps * config.runs * sum(gpus(config)) / 3600


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
        # Adapters are float32 whatever the policy is.
        state_bytes=28.0 if config.policy.lora or config.policy.dtype == "float32" else 14.0,
        compiled=config.compiles(config.trainer.accelerator != "cpu"),
        adapters=config.policy.lora.rank if config.policy.lora else 0,
        # The fixed cost was seen on GPUs only; a step of a tiny policy on a CPU takes less than that altogether.
        update_s=0.0 if config.trainer.accelerator == "cpu" else UPDATE_S,
    )
    shape, (of_trainer, _) = Shape.of(architecture(config.policy)), gpus(config)
    there = engines(config, memory)
    return phases(shape, step, config.workload, config.hardware, of_trainer, there, link_bytes_s(config))


def engines(config: PlanConfig, memory: Memory) -> Engines:
    """The inference engines that the config starts: a server's on GPUs of its own, others on those of the trainer."""
    rollout, vllm = config.rollout, config.rollout.vllm
    slots, (of_trainer, _) = rollout.max_batch_size, gpus(config)
    capacity, weights = config.hardware.memory_gb * 1e9, 2.0 * memory.parameters
    if rollout.engine == "torch":
        return Engines(of_trainer, 1, slots, max(capacity - memory.state * 2**30 - weights, 1.0))
    if vllm.placement != "server":
        return Engines(
            of_trainer / vllm.tensor_parallel, vllm.tensor_parallel, slots, vllm.cache_gb * 2**30 * vllm.tensor_parallel
        )
    cache = VLLM_MEMORY_FRAC * capacity * vllm.tensor_parallel - weights
    return Engines(len(vllm.server.urls), vllm.tensor_parallel, slots, max(cache, 1.0))


def link_bytes_s(config: PlanConfig) -> float:
    """The way of the weights to an engine."""
    served = config.rollout.engine == "vllm" and config.rollout.vllm.placement == "server"
    if served and config.rollout.vllm.server.transfer == "folder":
        return FOLDER_BYTES_S / 2  # written, then read
    # A broadcast passes each byte on while the next arrives: as fast as one link, whatever the number of servers.
    across = served or config.trainer.num_nodes > 1
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
    size = f"{config.hardware.memory_gb:.0f} GB"
    if memory.peak > capacity:
        print(f"does not fit into {size}: training, by {memory.peak - capacity:.1f} GiB")
    elif spare < 0:
        print(f"does not fit into {size}: engine weights and cache next to the training state")
        print(f"rollout.vllm.kv_cache_gb is at most {max(cache + spare, 0.0):.1f} there")
    else:
        print(f"fits into {size}, {capacity - memory.peak:.1f} GiB to spare in training")


def what_fits(config: PlanConfig, memory: Memory) -> tuple[list[str], int | None]:
    """The largest micro-batch and the fewest machines that fit; if the config does not, what makes it fit. Beside these
    lines, the number of machines.

    Only settings that the config does not have. Micro-batches are simulated, numbers of machines are arithmetic.
    """
    from dapo_lit.forecast.fitting import changed, fewest_nodes, largest_micro_batch
    from dapo_lit.forecast.memory import GIB, on_gpus, resident_engine

    capacity, set_tokens = config.hardware.memory_gb * 1e9 / GIB, config.trainer.tokens_at_once
    vllm, sharded = config.rollout.vllm, config.trainer.strategy == "fsdp"
    ways: dict[str, Config] = {"": config}
    if memory.peak > capacity and config.trainer.activation_checkpointing == "none":
        ways["trainer.activation_checkpointing=full"] = changed(config, activation_checkpointing="full")
    colocated = config.rollout.engine == "vllm" and vllm.placement != "server"
    if memory.peak > capacity and colocated and not vllm.sleep:
        asleep = config.rollout.model_copy(update={"vllm": vllm.model_copy(update={"sleep": True})})
        for name, of in list(ways.items()):
            ways[f"{name} rollout.vllm.sleep=true".strip()] = of.model_copy(update={"rollout": asleep})
    lines = []
    for name, of in ways.items():
        room, known = capacity - sum(resident_engine(of, memory.parameters).values()), (set_tokens, memory)
        tokens, _ = largest_micro_batch(of, room, None if name else known)
        if tokens and memory.peak <= capacity:
            lines.append(f"largest micro-batch that fits: trainer.micro_batch_tokens={tokens} (set: {set_tokens})")
        elif tokens:
            lines.append(f"fits with {name} trainer.micro_batch_tokens={min(tokens, set_tokens)}".replace("  ", " "))

    def enough(of: Config) -> bool:
        there = cast(PlanConfig, of)
        return fits(there, on_gpus(memory, gpus(config)[0], gpus(there)[0]), capacity)

    nodes = fewest_nodes(config, enough) if sharded else None
    if nodes:
        lines.append(f"fewest machines that fit: trainer.num_nodes={nodes} (set: {config.trainer.num_nodes})")
    if not lines:
        lines.append("no micro-batch, recomputation or sleep makes it fit: policy.lora, or trainer=fsdp on more GPUs")
    return lines, nodes


def fits(config: PlanConfig, memory: Memory, capacity: float) -> bool:
    """Whether training, next to what an engine keeps, and rollouts fit into `capacity` GiB of each GPU."""
    return memory.peak <= capacity and rollout_memory(config, memory, capacity)[2] >= 0


def rollout_memory(config: PlanConfig, memory: Memory, capacity: float) -> tuple[float, float, float]:
    """GiB of the engine's weights and cache on a GPU of the trainer during rollouts, and what is left."""
    from dapo_lit.forecast.memory import GIB, GRAPHS_GIB, engine_weights

    rollout = config.rollout
    if rollout.engine == "vllm" and rollout.vllm.placement == "server":
        return 0.0, 0.0, capacity - memory.state
    weights = engine_weights(config, memory.parameters)
    if rollout.engine == "torch":
        return weights, engines(config, memory).cache_bytes / GIB, 0.0
    cache = rollout.vllm.cache_gb
    return weights, cache, capacity - memory.state - weights - cache - GRAPHS_GIB


def _amount(number: float) -> str:
    """
    >>> _amount(12_345.6), _amount(98.2), _amount(1.234), _amount(0.0123)
    ('12,300', '98', '1.2', '0.012')
    """
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 10 else f"{number:.2g}"


def print_time(found: list[Phase]) -> None:
    total = sum(phase.seconds for phase in found)
    rows = [(phase.name, f"{phase.seconds:.1f}", f"{phase.seconds / total:.2f}", phase.bound) for phase in found]
    columns, title = ("phase", "s", "share", "bound"), "time per rollout step (s), modelled"
    print_table(columns, [*rows, ("step", f"{total:.1f}", "1.00", "")], left=("phase", "bound"), title=title)
    ranges = {kind: f"{low:+.0%} to {high:+.0%}" for kind, (low, high) in HELD_OUT_ERROR.items()}
    print(
        f"error of this model on published steps, to which it is not fitted: {ranges['step']}, on their phases "
        f"{ranges['phase']}; on held-out rows of training alone {ranges['training']} (docs/plan.md)"
    )


def print_price(config: PlanConfig, found: list[Cluster]) -> None:
    """What the runs take on each number of machines, and what an ablation does; ranges as `published` has them."""
    price, runs, steps = config.price_per_hour, config.runs, config.budget.steps
    rows = []
    for one in found:
        cost = (_range(one.gpu_hours * price),) if price else ()
        step = (f"{one.nodes}{'' if one.fits else ', too few'}", f"{one.gpus}", _amount(one.step_seconds))
        rows.append((*step, f"{_amount(one.days)} ({_range(one.days)})", _amount(one.gpu_hours), *cost))
    columns = ("machines", "GPUs", "s a step", "days a run", "GPU-hours", *(["cost"] if price else []))
    print_table(columns, rows, title=f"runs x steps: {runs} x {steps}; ranges: off as on published steps")
    if config.days:
        kept = [
            next((one.nodes for one in found if one.fits and end(one) <= config.days), None)
            for end in (lambda one: one.days, lambda one: published(one.days)[1])
        ]
        most = f"more than {found[-1].nodes:,} machines" if config.trainer.strategy == "fsdp" else "not on one process"
        said = [f"{nodes} machine{'s' * (nodes > 1)}" if nodes else most for nodes in kept]
        print(
            f"{steps} steps in {config.days:g} days: {said[0]} as modelled, {said[1]} with the error on published "
            "steps. Communication between machines is not modelled: many of them are slower than this"
        )
    pairs = pairs_needed(1)
    own = next(one for one in found if one.nodes == config.trainer.num_nodes)
    hours = own.gpu_hours / runs * 2 * pairs
    priced = f", cost {_range(hours * price)}" if price else "; price_per_hour gives a cost"
    decides = f"an ablation of one technique decides from {pairs} pairs on"
    print(f"{decides}: {2 * pairs} runs, {_range(hours)} GPU-hours{priced}")


def _range(modelled: float) -> str:
    """
    >>> _range(28_646.0)
    '23,900 to 52,100'
    """
    return " to ".join(map(_amount, published(modelled)))
