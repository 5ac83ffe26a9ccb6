"""What is expected of the campaign on one H100, written before a start: python benchmarks/gpu/forecasts_of_campaign.py

Of every part something is in forecasts.json, which campaign.py prints next to what is measured. Most of it is the model
of `dapo_lit.plan` (dapo_lit_tools/planning/duration.py); the rest is said at its line.
"""

import json
from typing import Any, cast

from campaign import FORECASTS, HERE
from d_trainer import BATCHES, CASES, batches_of, simulated_bytes
from head import ALL, COMPILED, FLOOR
from measure import median
from whole_step import (
    FAST,
    HEAD_TOKENS,
    HEAD_VOCABULARY,
    HEAD_WIDTH,
    LENGTH_SPREAD,
    MEAN_TOKENS,
    PROMPT_TOKENS,
    PROMPTS,
    SIZES,
    STEP_PARTS,
    TRAINER_CASES,
    WHOLE_STEP,
    useful,
    work_of,
)

from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import parse_as
from dapo_lit.forecast.architecture import qwen2_5
from dapo_lit.forecast.fitting import fitted
from dapo_lit.forecast.memory import training_memory
from dapo_lit_tools.planning.duration import BANDWIDTH_FRAC, HEAD_BYTES, HEAD_COMPILED, Cost, Shape, Tokens
from dapo_lit_tools.planning.hardware import GPUS, PlanConfig
from dapo_lit_tools.planning.plan import step_phases

CARD = GPUS["h100"]
RESULTS = HERE.parent / "results"
_MEASURED = json.loads((RESULTS / "gpu" / "2026-11-26_h100" / "conditions.json").read_text(encoding="utf-8"))
PRODUCT_TFLOPS = float(_MEASURED["product_tflops"])
"""Of the H100 of the first start: what every MFU is a share of."""
BF16_STATE_BYTES = 14.0
"""That an update of one parameter moves with weights and states in bfloat16."""


def forecasts() -> dict[str, Any]:
    again = (
        "trainer=gpu", "adapters", "torch sampler in bfloat16", "float32 under fsdp", "compiled",
        "vLLM under a float32 trainer",
    )  # fmt: skip
    return {
        "product": {"bfloat16, 8,192³": {"tflops": PRODUCT_TFLOPS}},
        "probe": {"engine alone": {"result": "works", "after_capture": 0.008, "after_blocked_clear": 0.008}},
        **{part: of_step(size, compiled=part == FAST) for part, size in STEP_PARTS.items()},
        "trl": {"0.5B": of_trl()},
        # Of the first start: 1.02 s with other jobs beside. The difference of one shard is a guess: it copies weights
        # and gradients once more.
        "smollm2": {
            "trainer=gpu": {"s_a_step": 0.9}, "trainer=fsdp, one shard": {"s_a_step": 1.0},
            "trainer=gpu, compiled": {"s_a_step": 0.7},
        },
        "trainer": of_trainer(),
        "head": of_head(),
        "faults": {name: {"result": "works"} for name in again},
        # What the H200 gave.
        "start": {"equality": {"same_tokens": True, "equal_frac": 0.86, "largest_difference": 5e-6}},
        # Of the first start: 0.5 to 0.7 s a step, 0.41 s of it the updates, which a step ahead is sampled behind.
        "ahead": {"steps_ahead=0": {"s_a_step": 0.6}, "steps_ahead=1": {"s_a_step": 0.45}},
        # On the H200 84 cells took 545 s beside other starts.
        "study": {"6 at once": {"result": "works", "cells": 46}},
    }  # fmt: skip


def of_step(size: str, *, compiled: bool) -> dict[str, Any]:
    """A whole step by `dapo_lit.plan`, which knows no launches, so of CUDA graphs; in the sizes that `auto` finds."""
    config = planned(size, f"trainer.compile={str(compiled).lower()}")
    memory = training_memory(config, quick=True)
    found = {phase.name: phase.seconds for phase in step_phases(config, memory)}
    return {
        size: {"result": "works"},
        f"{size}, step 2": {
            "generate_s": round(found["decode"] + found["prefill"], 2),
            "score_s": round(found.get("old log-probs", 0.0), 2),
            "train_s": round(found["updates"], 2),
            "sync_s": round(found["weight sync"], 3),
            "tokens_per_s": round(work_of(size).responses / sum(found.values())),
            "peak_gb": round(memory.peak * 2**30 / 1e9, 1),
            "mfu": round(useful(size, work_of(size)) / found["updates"] / (PRODUCT_TFLOPS * 1e12), 3),
            "micro_batch_tokens": config.trainer.tokens_at_once,
            "recomputation": config.trainer.activation_checkpointing,
        },
    }


def planned(size: str, *more: str) -> PlanConfig:
    overrides = [
        *WHOLE_STEP, *SIZES[size], f"algorithm.num_prompts={PROMPTS[size]}", *more,
        f"policy.path=Qwen/Qwen2.5-{size}", "hardware=h100", f"workload.prompt_tokens={PROMPT_TOKENS}",
        f"workload.mean_response_tokens={MEAN_TOKENS}", f"workload.length_spread={LENGTH_SPREAD}",
        "workload.keep_frac=1.0",
    ]  # fmt: skip
    config = parse_as(resolved(composed_tree(overrides, "plan")), PlanConfig)
    return cast(PlanConfig, fitted(config, round(config.hardware.memory_gb * 1e9)).config)


def of_trl() -> dict[str, Any]:
    """The same work with eager layers, which TRL has; what its own code takes besides is not modelled."""
    config = planned("0.5B", "trainer.compile=false")
    seconds = sum(phase.seconds for phase in step_phases(config, training_memory(config, quick=True)))
    return {
        "result": "works",
        "s_a_step": round(seconds, 1),
        "tokens_per_s": round(work_of("0.5B").responses / seconds),
    }


def of_trainer() -> dict[str, Any]:
    """Part d, compiled; the peak is the simulated one of eager layers, so rather too much."""
    found: dict[str, Any] = {"d_trainer": {"result": "works"}}
    for index in TRAINER_CASES:
        size, tokens, recomputed = CASES[index]
        shape, batches = Shape.of(qwen2_5(size)), batches_of(tokens)
        trained = sum(map(sum, batches)) / BATCHES
        squares = sum(n * n for lengths in batches for n in lengths) / BATCHES
        work = Tokens(trained, squares, 0.9 * trained, compiled=True)
        states = Cost(0.0, 0.0, BF16_STATE_BYTES * shape.parameters)
        cost = shape.training(work, recomputes=float(recomputed == "full"))
        seconds = cost.seconds(CARD, 1) + states.seconds(CARD, 1)
        once = shape.training(work, recomputes=0.0)
        found[f"{size}, {tokens:,} tokens, checkpointing {recomputed}, compiled"] = {
            "ms": round(1e3 * seconds, 1),
            "tokens_per_s": round(trained / seconds),
            "mfu": round((once.products + once.attention) / seconds / (PRODUCT_TFLOPS * 1e12), 3),
            "peak_gb": round(simulated_bytes(size, tokens, recomputed) / 1e9, 1),
        }
    return found


def of_head() -> dict[str, Any]:
    """Ours by the model of `plan`; the others as many times as long as on a CPU (benchmarks/results/head.json)."""
    logits = HEAD_TOKENS * HEAD_VOCABULARY
    products = Cost(6.0 * logits * HEAD_WIDTH, 0.0, 0.0)
    moving = HEAD_BYTES * logits / (CARD.bandwidth_gb_s * 1e9 * BANDWIDTH_FRAC)
    floor = products.seconds(CARD, 1)
    eager, *others = (name for name in ALL if name not in (COMPILED, FLOOR))
    ms = {eager: floor + moving, COMPILED: floor + HEAD_COMPILED * moving, FLOOR: floor}
    there = json.loads((RESULTS / "head.json").read_text(encoding="utf-8"))["results"]["4096"]
    on_cpu = {name: median(found["seconds"]) for name, found in there.items()}
    ms |= {name: ms[eager] * on_cpu[name] / on_cpu[eager] for name in others}
    return {"head": {"result": "works"}, **{name: {"ms": round(1e3 * seconds, 1)} for name, seconds in ms.items()}}


def main() -> None:
    FORECASTS.write_text(json.dumps(forecasts(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
