"""Fifteen minutes of one GPU, spent in order of worth: each part has its own cap, every row is written as it comes.

    python benchmarks/gpu/campaign.py --forecast        here: writes forecasts.json, which is committed before a start
    make gpu PART=campaign GPU_PYTHON=python3           there: runs the parts; ARGS="--parts step trl" chooses
    make gpu PART=campaign DRY=1                        on a CPU, at a size of seconds

- start: four_sums on the GPU and on the machine's CPU: the same tokens, and metrics within rounding?
- faults: what failed at the first start on a GPU, and `trainer=gpu`, side by side.
- warm: the first two parts may share the card with this one: the next two at a size of seconds, which shows that they
  start, and leaves compiled code behind.
- step, step_1_5b, step_7b: whole steps of `+experiment=qwen2_5_0_5b_gsm8k` (64 x 16 x 512; fewer prompts for the larger
  policies) with random weights and a coin flip for a reward. Seconds by phase, tokens a second, MFU, peak.
- trl: TRL's GRPOTrainer with vLLM in its process on the work of `step`, where TRL is installed.
- head, trainer: benchmarks/head.py at 152k words and part d with compiled layers.
- smollm2: its steps under `trainer=gpu`, compiled and not.
- study: the cells of `length_penalty` (experiments/length_penalty), several at once; the same command goes on.
- ahead: `rollout.steps_ahead` of 0 and 1.

Rows go to rows.jsonl in the folder of results, with what was forecast. What fails is a row too, and the next part runs.
Nothing of experiments/ is read, so that the tree may be sent without it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import random_policy
from measure import installed, machine, versions
from part import DEVICE, ON_GPU, PACKAGES
from runs import begin, learned, rows

from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import parse_as
from dapo_lit.forecast.duration import Shape, Tokens
from dapo_lit.forecast.fitting import fitted
from dapo_lit.forecast.hardware import GPUS, PlanConfig, qwen2_5
from dapo_lit.forecast.memory import training_memory
from dapo_lit.forecast.plan import step_phases

HERE = Path(__file__).resolve().parent
FORECASTS = HERE / "forecasts.json"
CAPS = {
    "start": 70.0, "faults": 90.0, "warm": 120.0, "step": 150.0, "trl": 150.0, "step_1_5b": 170.0, "head": 60.0,
    "trainer": 90.0, "smollm2": 70.0, "study": 300.0, "step_7b": 200.0, "ahead": 40.0,
}  # fmt: skip
"""Seconds of each part, in the order of worth; all of them are more than one loan of fifteen minutes."""
DRY_CAP_S = 300.0
"""A dry run takes a minute; on a busy machine nothing must end before it has been tried."""
SIZES = {
    "0.5B": ("budget.steps=2", "trainer.compile=true"),
    "1.5B": ("budget.steps=2", "trainer.compile=true", "algorithm.num_prompts=32"),
    "7B": (
        "budget.steps=1", "trainer.compile=true", "policy.dtype=bfloat16", "policy.lora={rank: 32, alpha: 32}",
        "algorithm.num_prompts=16",
    ),
}  # fmt: skip
"""Fewer prompts, so fewer updates, for the larger ones: a step of the rest of the experiment's sizes takes minutes."""
PROMPTS = {"0.5B": 64, "1.5B": 32, "7B": 16}
STEP_PARTS = {"step": "0.5B", "step_1_5b": "1.5B", "step_7b": "7B"}
CACHE_GB = {"0.5B": 5, "1.5B": 11, "7B": 16}
"""For 256 sequences of full length."""
SMALL = (
    "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2", "rollout.vllm.kv_cache_gb=2",
    "trainer.micro_batch_tokens=8192",
)  # fmt: skip
"""A whole step beside other processes: what is compiled is the same."""
WHOLE_STEP = (
    "+experiment=qwen2_5_0_5b_gsm8k", "reward.function=dapo_lit.rewards.coin_flip.reward", "task.template=plain",
    "algorithm.overlong.hard_punishment=false", "algorithm.techniques.dynamic_sampling=false", "evaluation.every=0",
    "evaluation.samples=1", "task.num_heldout=1",
)  # fmt: skip
PROMPT_TOKENS = 45
"""About as many does a problem of random_policy.py have."""
DRY = (
    "rollout=torch", "algorithm.num_prompts=2", "algorithm.samples_per_prompt=4", "algorithm.minibatch_prompts=1",
    "task.max_response_tokens=16", "algorithm.overlong.cache_tokens=4", "trainer.threads=1", "budget.steps=2",
    "trainer.sharding.dtype=null", "trainer.compile=false",
)  # fmt: skip
SMOLLM2 = Path("models/smollm2_135m").absolute()
SUMS = ("+experiment=four_sums", "evaluation.every=0", "algorithm.num_prompts=6", "algorithm.minibatch_prompts=3")


class Campaign:
    """Runs parts, each until its cap, and writes their rows."""

    def __init__(self, out: Path, tiny: bool, forecasts: dict[str, Any]) -> None:
        self.out, self.tiny, self.forecasts = out, tiny, forecasts
        self.part, self.ends = "", 0.0
        self.more: list[str] = []
        """Overrides of whole steps."""
        out.mkdir(parents=True, exist_ok=True)
        found = machine(1) | {"versions": versions(*PACKAGES), "dry": tiny, "date": time.strftime("%Y-%m-%d")}
        (out / "conditions.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def run(self, name: str, part: Callable[["Campaign", Path], None], cap_s: float) -> None:
        self.part, self.ends, began = name, time.monotonic() + cap_s, time.monotonic()
        print(f"== {name}, at most {cap_s:g} s", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                part(self, Path(folder))
            except Exception as error:
                self.add("failed", {"error": f"{type(error).__name__}: {error}"[-600:]})
        print(f"== {name} took {time.monotonic() - began:.0f} s", flush=True)

    def add(self, case: str, measured: dict[str, Any]) -> None:
        """A row: appended to the file and printed, with what was forecast next to what was measured."""
        forecast = self.forecasts.get(self.part, {}).get(case, {})
        row = {"part": self.part, "case": case, "measured": measured, "forecast": forecast}
        with (self.out / "rows.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        said = [f"{key} {short(value)}{told(forecast, key)}" for key, value in measured.items()]
        print(f"{self.part} | {case} | {', '.join(said)}", flush=True)

    def wait(self, processes: dict[str, "subprocess.Popen[bytes]"]) -> dict[str, int | None]:
        """Exit codes; None for a process that was ended at the cap."""
        codes: dict[str, int | None] = {}
        for name, process in processes.items():
            try:
                codes[name] = process.wait(max(self.ends - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                codes[name] = None
        return codes

    def keep(self, folder: Path) -> None:
        """What a run printed and its metrics, in the folder of results."""
        kept = self.out / "logs" / f"{self.part}_{folder.name}"
        for file in [*folder.glob("log.txt"), *folder.rglob("metrics.jsonl"), *folder.rglob("run.json")]:
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, kept / file.name)

    def ended(self, folder: Path, code: int | None) -> str:
        """How a run ended, in a line."""
        if code == 0:
            return "works"
        if code is None:
            return "ended at the cap"
        lines = [line for line in (folder / "log.txt").read_text(encoding="utf-8").splitlines() if line.strip()]
        return f"code {code}: {lines[-1] if lines else ''}"[:300]


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def told(forecast: dict[str, Any], key: str) -> str:
    return f" (forecast {short(forecast[key])})" if key in forecast else ""


# The parts


def start(campaign: Campaign, folder: Path) -> None:
    """Four sums on both devices; without a GPU the CPU twice."""
    steps, sizes = (2, SUMS) if campaign.tiny else (6, SUMS[:2])
    more = {"device": (), "cpu": ("trainer.accelerator=cpu",)}
    began = {name: begin(folder / name, *sizes, f"budget.steps={steps}", *of) for name, of in more.items()}
    codes = campaign.wait(began)
    if any(codes.values()) or None in codes.values():
        campaign.add("equality", {name: campaign.ended(folder / name, code) for name, code in codes.items()})
        return
    pairs = list(zip(rows(folder / "device"), rows(folder / "cpu"), strict=True))[1:]
    apart, equal, count = 0.0, 0, 0
    for one, other in pairs:
        kept = {k: v for k, v in learned(other).items() if not k.startswith("mismatch/")}
        differ = [abs(one[k] - v) / max(abs(v), 1e-30) for k, v in kept.items() if one[k] != v]
        apart, equal, count = max([apart, *differ]), equal + len(kept) - len(differ), count + len(kept)
    same = all(one["tokens_generated"] == other["tokens_generated"] for one, other in pairs)
    campaign.add("equality", {"same_tokens": same, "equal_frac": equal / count, "largest_difference": apart})


def faults(campaign: Campaign, folder: Path) -> None:
    cases: dict[str, tuple[str, ...]] = {
        "trainer=gpu": ("trainer=gpu",),
        "adapters": ("policy.lora={rank: 8, alpha: 8}",),
    }
    if not campaign.tiny:
        cases |= {
            "torch sampler in bfloat16": ("trainer=fsdp", "trainer.devices=1"),
            "float32 under fsdp": ("trainer=fsdp", "trainer.devices=1", "trainer.sharding.dtype=null"),
            "compiled": ("trainer.compile=true",),
        }
        if installed("vllm"):
            cases["vLLM under a float32 trainer"] = ("rollout=vllm", "rollout.vllm.kv_cache_gb=1")
    # trainer=fsdp and trainer=gpu set the accelerator; ours comes last
    began = {n: begin(folder / n, *SUMS, *of, f"trainer.accelerator={device()}", "budget.steps=2")
             for n, of in cases.items()}  # fmt: skip
    for name, code in campaign.wait(began).items():
        found = {"result": campaign.ended(folder / name, code)}
        if code == 0:
            last = rows(folder / name)[-1]
            found |= {"entropy": last["policy/entropy"], "grad_norm": last["optim/grad_norm"]}
        campaign.add(name, found)


def step(campaign: Campaign, folder: Path) -> None:
    size = STEP_PARTS[campaign.part]
    policy = written(campaign, folder, size)
    code = campaign.wait({size: begin_step(campaign, folder / "run", size, policy, *SIZES[size])})[size]
    found: dict[str, Any] = {"result": campaign.ended(folder / "run", code)}
    if list((folder / "run").rglob("metrics.jsonl")):  # some steps may be there even if it was ended
        for row in rows(folder / "run")[1:]:
            campaign.add(f"{size}, step {row['step']}", of_step(row, size))
    campaign.keep(folder / "run")
    campaign.add(size, found)


def warm(campaign: Campaign, folder: Path) -> None:
    policy = written(campaign, folder, "0.5B")
    # One after the other: beside a study, the card's memory is not enough for both.
    begins = {"0.5B": lambda: begin_step(campaign, folder / "0.5B", "0.5B", policy, *SIZES["0.5B"], *SMALL)}
    if installed("trl") and (campaign.tiny or installed("vllm")):
        begins["TRL"] = lambda: begin_trl(policy, folder / "TRL", "--tiny" if campaign.tiny else "--small")
    for name, starts in begins.items():
        code = campaign.wait({name: starts()})[name]
        campaign.add(name, {"result": campaign.ended(folder / name, code)})
        campaign.keep(folder / name)


def written(campaign: Campaign, folder: Path, size: str) -> Path:
    """A policy with random weights and problems, in a folder."""
    dtype = "bfloat16" if size == "7B" else "float32"
    policy = folder / "policy"
    if campaign.tiny:  # in this process: another one would import for longer than it writes
        return random_policy.write(policy, "tiny", dtype)
    command = [sys.executable, str(HERE / "random_policy.py"), str(policy), size, dtype]
    if campaign.wait({size: subprocess.Popen(command)})[size] != 0:
        raise RuntimeError("no policy was written before the cap")
    return policy


def begin_step(campaign: Campaign, folder: Path, size: str, policy: Path, *more: str) -> "subprocess.Popen[bytes]":
    """In the sizes that `auto` finds for a whole H100, which is the forecast: to find them again takes a minute."""
    part = next(part for part, of in STEP_PARTS.items() if of == size)
    fit = campaign.forecasts[part][f"{size}, step 2"]
    sizes = (f"trainer.micro_batch_tokens={fit['micro_batch_tokens']}", f"rollout.vllm.kv_cache_gb={CACHE_GB[size]}",
             f"trainer.activation_checkpointing={fit['recomputation']}")  # fmt: skip
    overrides = [*WHOLE_STEP, f"policy.path={policy / 'policy'}", f"task.path={policy / 'problems.jsonl'}",
                 f"task.eval_path={policy / 'held_out.jsonl'}"]  # fmt: skip
    if not campaign.tiny and not installed("vllm"):
        overrides.append("rollout=torch")
    overrides += [*sizes, *more, *campaign.more, *(DRY if campaign.tiny else ())]
    return begin(folder, *overrides, f"trainer.accelerator={device()}")


def of_step(row: dict[str, Any], size: str) -> dict[str, Any]:
    """A step's seconds by phase, its rate, MFU of training against the data sheet's rate, and peak."""
    if "time/train_s" not in row:
        return {}
    found = {
        key.removeprefix("time/"): row[key]
        for key in ("time/generate_s", "time/score_s", "time/train_s", "time/sync_s")
    }
    found |= {"tokens_per_s": row["perf/tokens_per_s"], "peak_gb": row["memory/peak_gb"]}
    if ON_GPU and row["time/train_s"]:
        found["mfu"] = useful(size) / row["time/train_s"] / (GPUS["h100"].tflops * 1e12)
    return found


def useful(size: str) -> float:
    """Operations of a step's updates, without recomputation; for adapters as if all weights were trained."""
    sequences, length = PROMPTS[size] * 16, PROMPT_TOKENS + 512
    work = Tokens(sequences * length, sequences * length**2, sequences * 512)
    cost = Shape.of(qwen2_5(size)).training(work, recomputes=0.0)
    return cost.products + cost.attention


def trl(campaign: Campaign, folder: Path) -> None:
    if not installed("trl") or (ON_GPU and not installed("vllm")):
        campaign.add("0.5B", {"result": "TRL or vLLM is not installed"})
        return
    process = begin_trl(written(campaign, folder, "0.5B"), folder / "TRL", *(["--tiny"] if campaign.tiny else []))
    code = campaign.wait({"trl": process})["trl"]
    found: dict[str, Any] = {"result": campaign.ended(folder / "TRL", code)}
    if (result := folder / "TRL" / "trl.json").is_file():
        found |= json.loads(result.read_text(encoding="utf-8"))
    campaign.keep(folder / "TRL")
    campaign.add("0.5B", found)


def begin_trl(policy: Path, folder: Path, *options: str) -> "subprocess.Popen[bytes]":
    folder.mkdir()
    command = [sys.executable, str(HERE / "trl_step.py"), str(policy), *options]
    with (folder / "log.txt").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)


def script(campaign: Campaign, folder: Path, file: Path, *options: str) -> None:
    """A benchmark of its own, whose JSON goes to the results."""
    tiny = ["--tiny", "--repeats", "2"] if campaign.tiny else []
    with (folder / "log.txt").open("wb") as log:
        command = [sys.executable, str(file), *options, *tiny, "--out", str(campaign.out)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        code = campaign.wait({"script": process})["script"]
    text = (folder / "log.txt").read_text(encoding="utf-8")
    print(text[-4000:], flush=True)
    campaign.keep(folder)
    campaign.add(file.stem, {"result": campaign.ended(folder, code)})


def head(campaign: Campaign, folder: Path) -> None:
    sizes = ("--vocabulary", "151936", "--hidden", "3584", "--tokens", "8192", "--device", DEVICE)
    script(
        campaign, folder, HERE.parent / "head.py", *sizes, "--no-errors", "--dtype", "bfloat16" if ON_GPU else "float32"
    )


def trainer(campaign: Campaign, folder: Path) -> None:
    # A CPU takes minutes to compile, and tests/policy/test_compiled.py has what comes of it.
    compiled = [] if campaign.tiny else ["--compiled"]
    script(campaign, folder, HERE / "d_trainer.py", *compiled, "--cases", "0", "2", "4")


def smollm2(campaign: Campaign, folder: Path) -> None:
    base: tuple[str, ...] = (
        "+experiment=smollm2_arithmetic", "trainer=gpu", f"policy.path={SMOLLM2}", "budget.steps=8"
    )  # fmt: skip
    if campaign.tiny or not (SMOLLM2 / "config.json").is_file():
        base = (*SUMS, "budget.steps=2")
    ways: dict[str, tuple[str, ...]] = {"eager": ()} | (
        {} if campaign.tiny else {"compiled": ("trainer.compile=true",)}
    )
    for name, more in ways.items():
        overrides = (*base, *more, "evaluation.every=0", f"trainer.accelerator={device()}")
        code = campaign.wait({name: begin(folder / name, *overrides)})[name]
        found: dict[str, Any] = {"result": campaign.ended(folder / name, code)}
        if list((folder / name).rglob("metrics.jsonl")) and len(of := rows(folder / name)) > 2:
            found |= {"s_a_step": (of[-1]["wall_s"] - of[2]["wall_s"]) / (len(of) - 3) if len(of) > 3 else None}
            found |= {"peak_gb": [row["memory/peak_gb"] for row in of[1:]]}
            found |= {key: of[-1][f"time/{key}"] for key in ("generate_s", "train_s", "sync_s")}
        campaign.keep(folder / name)
        campaign.add(name, found)


def study(campaign: Campaign, folder: Path) -> None:
    """Goes on where an earlier call with the same --out was ended."""
    if campaign.tiny or not (SMOLLM2 / "config.json").is_file():
        overrides = [*SUMS, "budget.steps=1", "+study=factorial", "study.arm=dapo,dapo-clip_higher", "seed=0"]
        overrides += ["study.pilot=true", "study.underpowered=true"]
    else:
        overrides = ["+experiment=smollm2_arithmetic", "+study=length_penalty", f"policy.path={SMOLLM2}"]
        overrides += ["trainer.micro_batch_tokens=4096"]
    at_once = 2 if campaign.tiny else 6
    # A process that has used the card cannot be forked: the parent tries nothing out there, and torch, asked whether
    # there is a GPU, asks the driver's library and not the card.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    overrides += [f"study.workers={at_once}", "preflight=false", "resume=auto", "trainer.checkpoint_every=12"]
    place = campaign.out.absolute() / "runs"
    process = begin(folder, "-m", *overrides, f"runs_dir={place}", f"trainer.accelerator={device()}")
    stopped = False
    while process.poll() is None:
        time.sleep(1.0)
        for done in place.rglob("DONE.json"):
            for checkpoint in done.parent.glob("checkpoints/*"):
                checkpoint.unlink(missing_ok=True)  # 1.6 GB each
        if time.monotonic() > campaign.ends and not stopped:
            process.terminate()  # the cells save themselves
            stopped = True
    log = (folder / "log.txt").read_text(encoding="utf-8")
    print(log[-3000:], flush=True)
    campaign.keep(folder)
    result = {"result": campaign.ended(folder, process.returncode), "cells": log.count(": done in"), "stopped": stopped}
    campaign.add(f"{at_once} at once", result)


def ahead(campaign: Campaign, folder: Path) -> None:
    for number in (0, 1):
        of = (
            (*SUMS, "budget.steps=2")
            if campaign.tiny
            else ("+experiment=dapo", "evaluation.every=0", "budget.steps=10")
        )
        name = str(number)
        if number and campaign.tiny:
            return
        code = campaign.wait({name: begin(folder / name, *of, f"rollout.steps_ahead={number}")})[name]
        found: dict[str, Any] = {"result": campaign.ended(folder / name, code)}
        if code == 0:
            ends = [row["wall_s"] for row in rows(folder / name)]
            found["s_a_step"] = (ends[-1] - ends[1]) / (len(ends) - 2)
        campaign.add(f"steps_ahead={number}", found)


PARTS: dict[str, Callable[[Campaign, Path], None]] = {
    "start": start, "faults": faults, "warm": warm, "step": step, "trl": trl, "step_1_5b": step, "head": head,
    "trainer": trainer, "smollm2": smollm2, "study": study, "step_7b": step, "ahead": ahead,
}  # fmt: skip


def device() -> str:
    return "gpu" if DEVICE == "cuda" else "cpu"


# The forecasts


def forecasts() -> dict[str, Any]:
    """What is expected of each case on an H100; of cases that are not named nothing was forecast."""
    again = (
        "trainer=gpu", "adapters", "torch sampler in bfloat16", "float32 under fsdp", "compiled",
        "vLLM under a float32 trainer",
    )  # fmt: skip
    return {
        "start": {"equality": {"same_tokens": True, "equal_frac": 0.86, "largest_difference": 5e-6}},
        "faults": {name: {"result": "works"} for name in again},
        **{part: {f"{size}, step 2": forecast_step(size, SIZES[size])} for part, size in STEP_PARTS.items()},
        "smollm2": {"eager": {"s_a_step": 0.9}, "compiled": {"s_a_step": 0.7}},
    }


def forecast_step(size: str, more: tuple[str, ...]) -> dict[str, Any]:
    """Of `dapo_lit.plan`, for responses that all run to the limit."""
    overrides = [
        *WHOLE_STEP, *more, f"policy.path=Qwen/Qwen2.5-{size}", "hardware=h100",
        f"workload.prompt_tokens={PROMPT_TOKENS}",
        "workload.mean_response_tokens=512", "workload.length_spread=0.01", "workload.keep_frac=1.0",
    ]  # fmt: skip
    config = parse_as(resolved(composed_tree(overrides, "plan")), PlanConfig)
    config = cast(PlanConfig, fitted(config, round(config.hardware.memory_gb * 1e9)).config)
    memory = training_memory(config, quick=True)
    found = {phase.name: phase.seconds for phase in step_phases(config, memory)}
    total = sum(found.values())
    return {
        "result": "works",
        "generate_s": round(found["decode"] + found["prefill"], 2),
        "score_s": round(found.get("old log-probs", 0.0), 2),
        "train_s": round(found["updates"], 2),
        "sync_s": round(found["weight sync"], 3),
        "tokens_per_s": round(PROMPTS[size] * 16 * (PROMPT_TOKENS + 512) / total),
        "peak_gb": round(memory.peak * 2**30 / 1e9, 1),
        "mfu": round(useful(size) / found["updates"] / (GPUS["h100"].tflops * 1e12), 3),
        "micro_batch_tokens": config.trainer.tokens_at_once,
        "recomputation": config.trainer.activation_checkpointing,
    }


def fails(measured: dict[str, Any]) -> bool:
    result = measured.get("result", "works")
    return "error" in measured or not (result == "works" or "not installed" in result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a size of seconds, on a CPU")
    parser.add_argument("--repeats", type=int, help="of no effect here: `make gpu` gives it to every part")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--cap_s", type=float, help="of each part instead of its own")
    parser.add_argument("--set", nargs="+", default=[], help="overrides of whole steps, such as KEY=VALUE")
    parser.add_argument("--out", type=Path, help="folder of results; default benchmarks/results/gpu/DATE_campaign")
    parser.add_argument("--forecast", action="store_true", help="write forecasts.json and run nothing")
    args = parser.parse_args()
    if args.forecast:
        FORECASTS.write_text(json.dumps(forecasts(), indent=1) + "\n", encoding="utf-8")
        return
    place = HERE.parents[0] / "results" / "gpu" / f"{time.strftime('%Y-%m-%d')}_campaign"
    if args.tiny and args.out is None:
        place = Path(tempfile.mkdtemp())
    campaign = Campaign(args.out or place, args.tiny, json.loads(FORECASTS.read_text(encoding="utf-8")))
    campaign.more = args.set
    # The larger policies run the same lines as the first, and the head's benchmark has a test of its own.
    skipped = {"step_1_5b", "step_7b", "head"} if args.tiny else set[str]()
    for name, cap_s in CAPS.items():
        if name in args.parts and name not in skipped:
            campaign.run(name, PARTS[name], DRY_CAP_S if args.tiny else args.cap_s or cap_s)
    if args.tiny and args.out is None:
        found = [json.loads(line) for line in (place / "rows.jsonl").open(encoding="utf-8")]
        shutil.rmtree(place)
        if broken := [row for row in found if fails(row["measured"])]:
            sys.exit(f"a part does not run: {broken}")


if __name__ == "__main__":
    main()
