"""Tables of what `plan` says against what was measured, for the made parts of docs/plan.md."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import on_gpu
import yaml
from cells import ROOT
from scipy.optimize import least_squares

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
"""Bytes for each logit of a head that goes through the vocabulary in chunks (prime-rl's until March 2026). Fitted with
the constants of training, and used for such rows only: no head here works that way."""
FRAMEWORKS = {"here": "here", "prime-rl": "prime-rl", "torchtitan": "torchtitan", "automodel": "NeMo AutoModel"}
NAMES = {
    "qwen_0_5b": "Qwen2.5 0.5B", "qwen_1_5b": "Qwen2.5 1.5B", "qwen_7b": "Qwen2.5 7B", "qwen3_0_6b": "Qwen3 0.6B",
    "qwen3_4b": "Qwen3 4B", "llama_2_13b": "Llama 2 13B", "llama_2_70b": "Llama 2 70B", "llama_3_1b": "Llama 3.2 1B",
    "llama_3_3b": "Llama 3.2 3B", "llama_3_8b": "Llama 3 8B", "llama_70b": "Llama 3 70B", "smollm3_3b": "SmolLM3 3B",
    "olmo3_7b": "OLMo 3 7B",
}  # fmt: skip
MEANINGS = {
    "ATTENTION_FRAC": "share of a GPU's operations that attention reaches with a kernel made for the GPU",
    "FLASH_2_TFLOPS": "the most that FlashAttention 2 reaches on any GPU; training here uses it",
    "ELEMENTWISE": "bytes between the products of a layer, over the count of the operations",
    "COMPILED": "what compiled layers leave of these bytes",
    "ADAPTER_BYTES": "bytes that an adapter moves for each input and output of its matrix; 5 to 7 by counting",
    "UPDATE_S": "fixed seconds of an update: launches of the optimiser, norm of the gradient, metrics",
}
"""What the fitted constants of a plan are."""
GOAL = 0.15
"""Error of a time that the model should keep."""
FITTED = {
    "ATTENTION_FRAC": (0.2, 1.0), "FLASH_2_TFLOPS": (100.0, 1500.0), "ELEMENTWISE": (0.1, 6.0), "COMPILED": (0.2, 1.0),
    "ADAPTER_BYTES": (0.0, 300.0), "UPDATE_S": (0.0, 2.0), "CHUNKED_HEAD_BYTES": (20.0, 2000.0),
}  # fmt: skip
"""The fitted constants, and the values between which they are looked for."""
COUNTED = {
    "ATTENTION_FRAC": 0.6, "FLASH_2_TFLOPS": 380.0, "ELEMENTWISE": 1.0, "COMPILED": 0.8,
    "ADAPTER_BYTES": 6.0, "UPDATE_S": 0.1, "CHUNKED_HEAD_BYTES": 125.0,
}  # fmt: skip
"""Where the search starts: operations counted in code, and rates as kernels' authors publish them. A constant that no
row depends on stays there."""


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


def with_constants(constants: dict[str, float], row: Rows, rows: Rows) -> float:
    """Modelled seconds of a row of `training` with these values of the fitted constants."""
    before = {name: getattr(duration, name) for name in FITTED if hasattr(duration, name)}
    try:
        for name in before:
            setattr(duration, name, constants[name])
        return trained_seconds(row, rows, constants["CHUNKED_HEAD_BYTES"])
    finally:
        for name, value in before.items():
            setattr(duration, name, value)


def fit(chosen: list[Rows], rows: Rows) -> dict[str, float]:
    """The constants that bring the logarithms of modelled and measured seconds of the chosen rows closest. Errors above
    a tenth count by their size, not its square (soft L1), so that a few slow programs do not bend the rest."""
    start = np.array([COUNTED[name] for name in FITTED])

    def errors(scaled: np.ndarray) -> list[float]:
        constants = dict(zip(FITTED, scaled * start, strict=True))
        return [math.log(with_constants(constants, row, rows) / row["seconds"]) for row in chosen]

    ends = np.array(list(FITTED.values())) / start[:, None]
    found = least_squares(errors, np.ones_like(start), loss="soft_l1", f_scale=0.1, bounds=(ends[:, 0], ends[:, 1]))
    return dict(zip(FITTED, map(float, found.x * start), strict=True))


def errors_of(chosen: list[Rows], rows: Rows, constants: dict[str, float] | None = None) -> list[float]:
    """Modelled over measured seconds, less 1."""
    seconds = [with_constants(constants, row, rows) if constants else trained_seconds(row, rows) for row in chosen]
    return [found / row["seconds"] - 1 for found, row in zip(seconds, chosen, strict=True)]


def training() -> str:
    """Rows of training by framework, policy, card and what is trained: times, error of the model, and side."""
    rows = published()
    groups: dict[tuple[str, ...], list[Rows]] = {}
    for row in rows["training"]:
        card, framework = named_gpu(row["gpu"], rows).name, FRAMEWORKS[row["framework"]]
        what = "adapters" if row["adapters"] else "all weights"
        key = (framework, NAMES[row["shape"]], card, what, "held out" if held_out(row) else "fitted")
        groups.setdefault(key, []).append(row)
    lines = ["| training alone | | | | rows | measured, s | error | |", "|---|---|---|---|---:|---:|---:|---|"]
    for (framework, shape, card, what, side), found in groups.items():
        seconds, errors = [row["seconds"] for row in found], errors_of(found, rows)
        cells = (len(found), _range(seconds, "{:.3g}"), _range(errors, "{:+.0%}"))
        lines.append(f"| {framework} | {shape} | {card} | {what} | {cells[0]} | {cells[1]} | {cells[2]} | {side} |")
    return "\n".join(lines)


def training_errors() -> str:
    """How far the model is from the rows it was fitted to, from those held out, and from each framework if nothing is
    fitted to that one."""
    rows = published()
    every = rows["training"]
    fitted, held = [row for row in every if not held_out(row)], [row for row in every if held_out(row)]
    parts = [
        ("fitted", errors_of(fitted, rows)),
        ("**held out**", errors_of(held, rows)),
        ("held out, all weights", errors_of([row for row in held if not row["adapters"]], rows)),
        ("held out, adapters", errors_of([row for row in held if row["adapters"]], rows)),
        ("held out, H100 and H200", errors_of([row for row in held if row["gpu"].startswith("h")], rows)),
        ("held out, other cards", errors_of([row for row in held if not row["gpu"].startswith("h")], rows)),
    ]
    parts += [
        (f"all of {name}, if fitted to the other frameworks only", errors)
        for name, errors in errors_without(rows).items()
    ]
    lines = [f"| rows | number | median error | within {GOAL:.0%} | range |", "|---|---:|---:|---:|---:|"]
    for name, errors in parts:
        if not errors:
            continue
        sizes = [abs(error) for error in errors]
        within = f"{sum(size <= GOAL for size in sizes)} of {len(sizes)}"
        lines.append(f"| {name} | {len(sizes)} | {median(sizes):.1%} | {within} | {_range(errors, '{:+.0%}')} |")
    return "\n".join(lines)


def errors_without(rows: Rows) -> dict[str, list[float]]:
    """The errors of each framework's rows if the constants are fitted to the others'."""
    found = {}
    for framework, name in FRAMEWORKS.items():
        others = [row for row in rows["training"] if not held_out(row) and row["framework"] != framework]
        of = [row for row in rows["training"] if row["framework"] == framework]
        found[name] = errors_of(of, rows, fit(others, rows)) if of else []
    return found


def unseen_framework() -> str:
    """The least and the largest median error of a published framework that the fit has not seen."""
    found = errors_without(published())
    medians = [
        100 * median(map(abs, errors)) for name, errors in found.items() if errors and name != FRAMEWORKS["here"]
    ]
    return f"off by {min(medians):.0f} to {max(medians):.0f} %"


def constants() -> str:
    """The constants of a plan that are fitted."""
    lines = ["| constant | fitted | meaning |", "|---|---:|---|"]
    return "\n".join(
        [*lines, *(f"| `{name}` | {getattr(duration, name):g} | {is_} |" for name, is_ in MEANINGS.items())]
    )


def sources() -> str:
    """Where the rows are from, and what was found and left out."""
    rows = published()
    lines = ["| source | rows used | rows left out | because |", "|---|---:|---:|---|"]
    used = Counter(FRAMEWORKS[row["framework"]] for row in rows["training"])
    used.update(row["name"].split(",")[0].split(" v")[0] for row in rows["steps"])
    lines += [f"| {name} | {number} | | |" for name, number in used.items()]
    lines += [f"| {row['source']} | | {row['rows']} | {row['why']} |" for row in rows["left_out"]]
    return "\n".join(lines)


def held_out_training() -> str:
    """How many of the rows that were not fitted are within the goal, and the ends of their errors."""
    rows = published()
    errors = errors_of([row for row in rows["training"] if held_out(row)], rows)
    within = sum(abs(error) <= GOAL for error in errors)
    ends = f"{-100 * min(errors):.0f} % too fast to {100 * max(errors):.0f} % too slow"
    return f"within 15 % for {within} of {len(errors)}, and from {ends}"


def _range(values: list[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


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


NAMED: dict[str, Callable[[], str]] = {
    "held_out_training": held_out_training,
    "unseen_framework": unseen_framework,
}
"""Name of a number in a sentence -> what makes its text."""
