"""Tables of what ran on a GPU, for the made parts of pages: rows of benchmarks/results/gpu/FOLDER, one folder a start.

A folder has the card, versions, commit and date in `conditions.json`, and rows as JSONL as they were written there.
"""

import json
import re
from pathlib import Path
from typing import Any

from cells import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "gpu"
H100, H200 = RESULTS / "2026-11-26_h100", RESULTS / "2026-11-27_h200"
NOT_LEARNED = ("wall_s", "crc32", "time/", "perf/", "memory/")
"""Metrics that the clock or the machine decides, as in AGENTS.md, and the checksum of a row with them."""
ROUNDING = "mismatch/"
"""Metrics of the difference between two samplers' roundings; it is their only content here."""


def rows(name: str, folder: Path = H100) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").open(encoding="utf-8")]


def conditions() -> str:
    """Card, machine, versions, commit and date of the measured rows."""
    said = []
    for folder in (H100, H200):
        found = json.loads((folder / "conditions.json").read_text(encoding="utf-8"))
        versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        card = f"one {found['gpu']} ({found['product_tflops']:g} TFLOP/s in a bfloat16 product of 8,192³)"
        host = f"{found['cores']} cores, driver {found['driver']}"
        said.append(f"- {found['date']}, commit {found['commit']}: {card}, {host}; {versions}. {found['note']}")
    return "\n".join(said)


def second_starts() -> str:
    return starts(H200)


def starts(folder: Path = H100) -> str:
    """Every command that was started on the card, and what came of it."""
    lines = ["| command, with `trainer.accelerator=gpu` | result | | since then |", "|---|---|---|---|"]
    for row in rows("starts", folder):
        result = row["result"] if row["result"] == "works" else f"**{row['result']}**"
        lines.append(f"| {row['command']} | {result} | {row['detail']} | {since_then(row)} |")
    return "\n".join(lines)


def since_then(row: dict[str, Any]) -> str:
    """What was changed after a start, and what came of the starts that repeat one which did not work."""
    changed = NOT_AGAIN.sub("", row["since"] or "")
    if row["result"] == "works":
        return changed
    again = [(card(folder), later) for folder in folders() for later in rows("starts", folder)]
    said = [
        f"then on the {name}, {OF_CAMPAIGN.sub('', later['command'])}: {later['result']}"
        for name, later in again
        if later.get("repeats") == row["id"]
    ]
    return "; ".join([*([changed] if changed else []), *(said or ["not run again"])])


NOT_AGAIN = re.compile("[,;] not run again$")
"""That a row says so is true of the day on which it was written; whether it is now, the later rows say."""
OF_CAMPAIGN = re.compile("^campaign, [a-z]+: ")


def folders() -> list[Path]:
    """The folders that have rows of starts, the first start first."""
    return sorted(path.parent for path in RESULTS.glob("*/starts.jsonl"))


def card(folder: Path) -> str:
    """
    >>> card(H100)
    'H100'
    """
    gpu: str = json.loads((folder / "conditions.json").read_text(encoding="utf-8"))["gpu"]
    return gpu.split()[1]


def trainer() -> str:
    """The trainer without an engine at the shapes of Qwen2.5."""
    lines = [
        "| shape, tokens, recomputation | card | ms a step | tokens/s | useful MFU | peak GB |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for card, row in [*(("H100", row) for row in rows("trainer")), *(("H200", row) for row in rows("trainer", H200))]:
        compiled = ", layers and head compiled" if row.get("head_compiled") else ", layers compiled" * row["compiled"]
        name = f"{row['policy']}, {row['tokens']:,}, {row['recomputation']}{compiled} | {card}"
        cells = ["out of memory", "", "", ""]
        if "ms" in row:
            cells = [
                f"{row['ms']:,.0f}",
                f"{row['tokens_per_s']:,.0f}",
                f"{100 * row['mfu']:.1f} %",
                f"{row['peak_gb']:.1f}",
            ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def head() -> str:
    """The head with DAPO's loss at 152k words and a width of 3,584 in bfloat16, eager and compiled."""
    of = rows("head")
    floors = {row["tokens"]: row["floor_ms"] for row in of if row.get("part") == "c"}
    found = {(row["tokens"], row["chunk"], row["compiled"]): row for row in of if "compiled" in row}
    lines = [
        "| tokens, rows a chunk | eager, ms | compiled, ms | three products, ms | peak GB, eager | peak GB, compiled |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for tokens, chunk in sorted({key[:2] for key in found}):
        eager, compiled = (found[tokens, chunk, way] for way in (False, True))
        name = f"{tokens:,}, {chunk:,}{' (chosen)' if chunk == 2048 else ''}"
        lines.append(
            f"| {name} | {eager['ms']:.1f} | {compiled['ms']:.1f} | {floors[tokens]:.1f} | "
            f"{eager['peak_gb']:.1f} | {compiled['peak_gb']:.1f} |"
        )
    return "\n".join(lines)


def smollm2() -> str:
    """Steps of `+experiment=smollm2_arithmetic`: seconds by phase, rate and peak, first and last step apart."""
    runs = {
        "vLLM, asleep in training; `trainer=fsdp` on one GPU (bfloat16); micro-batches of 1,024": "smollm2_vllm",
        "torch sampler; one process in float32; micro-batches of 16,384": "smollm2_torch",
    }
    lines = [
        "| run | steps | s a step | generate, s | train, s | sync, s | tokens/s | peak GB | held-out before, after |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, file in runs.items():
        first, *steps = rows(file)
        later = steps[1:]  # the first step compiles and allocates
        spread = [_range([row[key] for row in later]) for key in ("time/generate_s", "time/train_s", "time/sync_s")]
        whole = (steps[-1]["wall_s"] - steps[0]["wall_s"]) / len(later)
        rates = [row["perf/tokens_per_s"] for row in later]
        peaks = [row["memory/peak_gb"] for row in steps]
        key = "eval/arithmetic_chat/avg@4"
        lines.append(
            f"| {name} | {len(steps)} | {whole:.2f} | {' | '.join(spread)} | {min(rates):,.0f} to {max(rates):,.0f} | "
            f"{min(peaks):.1f} to {max(peaks):.1f} | {first[key]:.3f}, {steps[-1][key]:.3f} |"
        )
    return "\n".join(lines)


GOALS = {"0.5B": 0.45, "1.5B": 0.55, "7B": 0.55}
"""Useful MFU that is aimed at on one H100."""
HEAD_GOAL, STEP_GOAL_S = 1.25, 0.5
"""Time of the head over that of its three products; seconds of a step of SmolLM2-135M."""


UNMEASURED = (
    "a full step of 0.5B or more", "TRL's step on the same work", "`trainer=gpu` against one shard of FSDP2",
    "a step with `rollout.steps_ahead=1` against 0",
)  # fmt: skip
"""What a campaign measures and no row has yet."""


def goals() -> str:
    """What is aimed at on one GPU, beside the best that was measured."""
    lines = ["| on one GPU | goal | best measured | |", "|---|---:|---:|---|"]
    measured = [*((row, "H100") for row in rows("trainer")), *((row, "H200") for row in rows("trainer", H200))]
    for policy, goal in GOALS.items():
        row, card = max(
            (of for of in measured if of[0]["policy"] == policy and "mfu" in of[0]), key=lambda of: of[0]["mfu"]
        )
        what = "layers and head compiled" if row.get("head_compiled") else "layers compiled" * row["compiled"]
        lines.append(
            f"| useful MFU of the trainer, {policy} | {goal:.0%} | {row['mfu']:.1%} | "
            f"{card}, {what or 'eager, with recomputation'} |".replace("%", " %")
        )
    ratio, chunk = min(head_ratios().values())
    where = f"H100, compiled, {chunk:,} rows a chunk, older code"
    lines.append(f"| head over its three products | {HEAD_GOAL} | {ratio:.2f} | {where} |")
    steps = rows("smollm2_torch")[1:]
    seconds = (steps[-1]["wall_s"] - steps[0]["wall_s"]) / (len(steps) - 1)
    lines.append(f"| a step of SmolLM2-135M, s | {STEP_GOAL_S} | {seconds:.2f} | H100, other jobs on the card |")
    [tiny] = [row["detail"] for row in rows("starts") if row["id"] == "joint"]
    updates = re.findall(r"([\d.]+) s of it the 16 updates", tiny)[0]
    lines.append(
        f"| the 16 updates of a step of the tiny policy, s | none set | {updates} | H100, other jobs on the card |"
    )
    lines += [f"| {what} | none set | not measured | |" for what in UNMEASURED]
    return "\n".join(lines)


def head_times() -> tuple[dict[int, float], float]:
    """Rows a chunk -> ms of the compiled head at 16,384 tokens; ms of its three products."""
    of = [row for row in rows("head") if row.get("tokens") == 16_384]
    (floor,) = (row["floor_ms"] for row in of if row.get("part") == "c")
    return {row["chunk"]: row["ms"] for row in of if row.get("compiled")}, floor


def head_ratios() -> dict[int, tuple[float, int]]:
    """Rows a chunk -> (time of the compiled head over its three products at 16,384 tokens, rows a chunk)."""
    times, floor = head_times()
    return {chunk: (ms / floor, chunk) for chunk, ms in times.items()}


HEAD_BYTES_THEN, HEAD_BYTES_NOW = 50, 14
"""Bytes read and written for each logit between the products, in the Triton code that inductor of torch 2.13 generates
for compute capability 9.0. Of the head of these rows: three reads and two writes forward, and a copy over the logits
(28); two reads and two writes backward (16); the cast reads and writes in 16 bits (6). Now: two reads (8); one read,
and a write in 16 bits (6)."""


def ms_of_new_sums(chunks: int) -> float:
    """What so many chunks took because each added up the head's gradient in a new tensor: against a sum in place."""
    of = {row["product"]: row["ms"] for row in rows("head") if "product" in row}
    return chunks * (of["dW addmm fp32 (new tensor)"] - of["dW addmm_ bf16"])


def head_estimate(chunk: int, *, in_place: bool) -> float:
    """The head of now over its three products, if all time above the products goes with the bytes.

    What 8,192 rows a chunk take above the products is the bytes', as they have the fewest sums of the head's gradient.
    in_place: these sums take no longer than in bfloat16.
    """
    times, floor = head_times()
    saved = (times[8192] - floor) * (1 - HEAD_BYTES_NOW / HEAD_BYTES_THEN)
    return (times[chunk] - saved - in_place * ms_of_new_sums(16_384 // chunk)) / floor


def _range(values: list[float]) -> str:
    digits = 2 if max(values) >= 0.1 else 3
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def compared(step: int) -> dict[str, Any]:
    """A step's row on the card against the same machine's CPU: number of metrics, equal ones, largest difference."""
    cpu, gpu = ({row["step"]: row for row in rows(name)}[step] for name in ("sums_cpu", "sums_gpu"))
    keys = [key for key in cpu if not key.startswith((*NOT_LEARNED, ROUNDING))]
    apart = [abs(gpu[key] - cpu[key]) / abs(cpu[key]) for key in keys if cpu[key] != gpu[key]]
    return {
        "tokens": (cpu["tokens_generated"], gpu["tokens_generated"]),
        "metrics": len(keys),
        "equal": len(keys) - len(apart),
        "largest": max(apart, default=0.0),
    }


def agreement() -> str:
    """Step by step: tokens generated so far, metrics that are equal to the bit, and how far the others are."""
    lines = [
        "| step | tokens, CPU | tokens, GPU | metrics | equal to the bit | largest relative difference of the others |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for step in sorted(row["step"] for row in rows("sums_cpu") if row["step"]):
        of = compared(step)
        cpu, gpu = of["tokens"]
        lines.append(f"| {step} | {cpu:,} | {gpu:,} | {of['metrics']} | {of['equal']} | {of['largest']:.0e} |")
    return "\n".join(lines)
