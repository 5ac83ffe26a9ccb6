"""Tables of what `plan` says against what was measured, for the made parts of docs/plan.md."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import on_gpu
import yaml
from cells import ROOT

from dapo_lit_tools.planning import duration
from dapo_lit_tools.planning.duration import (
    BANDWIDTH_FRAC,
    HEAD_BYTES,
    HEAD_COMPILED,
    Engines,
    Shape,
    Step,
    Tokens,
    phases,
)
from dapo_lit_tools.planning.hardware import GPUS, Hardware, Workload

Rows = dict[str, Any]
CHUNKED_HEAD_BYTES = 539.0
"""Bytes for each logit of a head that goes through the vocabulary in chunks (prime-rl's until March 2026). Fitted with the
constants of training, and used for such rows only: no head here works that way."""
NAMES = {
    "qwen_0_5b": "0.5B", "qwen_1_5b": "1.5B", "qwen_7b": "7B", "qwen3_0_6b": "Qwen3 0.6B", "qwen3_4b": "Qwen3 4B",
    "llama_3_8b": "Llama 3 8B", "llama_70b": "Llama 70B",
}  # fmt: skip
SHORT = {
    "benchmarks/results/gpu/2026-11-26_h100, part d": "one H100, here",
    "benchmarks/llama3_h100_202412_torchtitan.md": "128 H100",
    "docs/performance.md (2024)": "64 A100",
    "prime-rl benchmarks/baselines at 559b4477": "prime-rl, H100",
}


def published() -> Rows:
    return yaml.safe_load((ROOT / "tests" / "published_speeds.yaml").read_text(encoding="utf-8"))


def named_gpu(name: str, rows: Rows) -> Hardware:
    return Hardware(**rows["cards"][name]) if name in rows["cards"] else GPUS[name]


def held_out(row: Rows) -> bool:
    """Whether a row of `training` is held out from the fit, which is decided for a framework, policy and card at once:
    another number of GPUs or another length of the same is nearly the same measurement."""
    key = f"{row['framework']} {row['shape']} {row['gpu']}"
    return hashlib.sha256(key.encode()).digest()[-1] % 2 == 1


def modelled(row: Rows, rows: Rows) -> dict[str, float]:
    """Seconds of a published step, by phase and in all."""
    machine, sizes = row["machine"], row["step"]
    shape, gpu, tp = Shape(**rows["shapes"][machine["shape"]]), named_gpu(machine["gpu"], rows), machine["engine_gpus"]
    groups = sizes.get("groups", sizes["prompts"])
    step = Step(
        sizes["prompts"],
        sizes["samples"],
        sizes["limit"],
        groups,
        1,
        sizes["scored"],
        sizes["recomputes"],
        updates=sizes.get("updates", 1),
    )
    work = Workload(
        prompt_tokens=sizes["prompt"], mean_response_tokens=sizes["mean"], length_spread=0.8, keep_frac=1.0
    )  # fmt: skip
    cache = tp * machine["memory_frac"] * gpu.memory_gb * 1e9 - 2 * shape.parameters
    with_engines = Engines(machine["gpus"] / tp, tp, machine["slots"], cache)
    found = phases(shape, step, work, gpu, machine["gpus"], with_engines, gpu.network_gb_s * 1e9)
    seconds = {phase.name: phase.seconds for phase in found}
    return seconds | {"step": sum(seconds.values())}


def trained_seconds(row: Rows, rows: Rows, chunked_head_bytes: float = CHUNKED_HEAD_BYTES) -> float:
    """Modelled seconds of a row of `training`."""
    shape, gpu, rank = Shape(**rows["shapes"][row["shape"]]), named_gpu(row["gpu"], rows), row["adapters"]
    work = Tokens(row["tokens"], row["squares"], row["responses"], row["compiled"], rank)
    cost = shape.training(work, row["recomputes"])
    logits, products = shape.vocabulary * row["responses"], 2 * shape.head * row["responses"]
    here = HEAD_BYTES * (HEAD_COMPILED if row["compiled"] else 1.0)  # as `training` has it
    if row["head"] == "chunks":  # their backward computes the logits again and, even if frozen, the weights' gradient
        cost = replace(
            cost,
            products=cost.products + (2 if rank else 1) * products,
            moved=cost.moved + (chunked_head_bytes - here) * logits,
        )
    elif row["head"] == "eager":
        cost = replace(cost, moved=cost.moved + (HEAD_BYTES - here) * logits)
    limit = duration.FLASH_2_TFLOPS if row["kernel"] == "flash_2" else math.inf
    states = row["state_bytes"] * shape.trained(rank) / row["gpus"]  # sharded
    fixed = duration.UPDATE_S if row["whole"] else 0.0
    return cost.seconds(gpu, 1, limit) + states / (gpu.bandwidth_gb_s * 1e9 * BANDWIDTH_FRAC) + fixed


def training() -> str:
    """Every row of training, measured and modelled; which were fitted to."""
    rows = published()
    lines = ["| training alone, seconds | measured | modelled | error | |", "|---|---:|---:|---:|---|"]
    for number, row in enumerate(rows["training"]):
        found, seconds = trained_seconds(row, rows), row["seconds"]
        source = row["source"]
        for long, short in SHORT.items():
            source = source.replace(long, short)
        name = f"{NAMES[row['shape']]}, {row['tokens']:,} tokens{', compiled' * row['compiled']} ({source})"
        kind = "held out" if number % 2 else "fitted"
        lines.append(f"| {name} | {seconds:.3g} | {found:.3g} | {found / seconds - 1:+.0%} | {kind} |")
    return "\n".join(lines)


def held_out_training() -> str:
    """From the fastest to the slowest that the rows which were not fitted are modelled."""
    rows = published()
    errors = [trained_seconds(row, rows) / row["seconds"] - 1 for row in rows["training"][1::2]]
    return f"{-100 * min(errors):.0f} % too fast to {100 * max(errors):.0f} % too slow"


def steps() -> str:
    """Published steps of RL and their phases."""
    rows = published()
    lines = ["| published step | phase | s | modelled | error |", "|---|---|---:|---:|---:|"]
    for row in rows["steps"]:
        found = modelled(row, rows)
        for phase, seconds in row["seconds"].items():
            error = found[phase] / seconds - 1
            lines.append(f"| {row['name']} | {phase} | {seconds:,.0f} | {found[phase]:,.0f} | {error:+.0%} |")
    return "\n".join(lines)


def memory() -> str:
    """Peaks of an update of one micro-batch on the card, and what the simulation says of the same update."""
    lines = ["| update of one micro-batch, GB | measured | simulated | error |", "|---|---:|---:|---:|"]
    for row in on_gpu.rows("planned"):
        name, peak = (
            f"{row['policy']}, {row['tokens']:,} tokens, recomputation {row['recomputation']}",
            row["simulated_gb"],
        )
        measured, error = "more than 80", ""
        if row["peak_gb"] is not None:
            measured, error = f"{row['peak_gb']:.1f}", f"{peak / row['peak_gb'] - 1:+.0%}"
        lines.append(f"| {name} | {measured} | {peak:.1f} | {error} |")
    return "\n".join(lines)


NAMED: dict[str, Callable[[], str]] = {"held_out_training": held_out_training}
"""Name of a number in a sentence -> what makes its text."""
