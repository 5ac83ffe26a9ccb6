"""Fifteen minutes of one GPU, spent in order of worth: each part has its own cap, every row is written as it comes.

    python benchmarks/gpu/campaign.py --forecast        here: writes forecasts.json, which is committed before a start
    make gpu PART=campaign GPU_PYTHON=python3           there: runs the parts; ARGS="--parts steps trl" chooses
    make gpu PART=campaign DRY=1                        on a CPU, at a size of seconds

- start (a): four_sums on the GPU and on the machine's CPU: the same tokens, and metrics within rounding?
- faults (b): what failed at the first start on a GPU, and `trainer=gpu`, side by side.
- steps (c): whole steps of `+experiment=qwen2_5_0_5b_gsm8k` (64 x 16 x 512) with random weights and a coin flip for a
  reward: 0.5B, 1.5B, 7B with adapters. Seconds by phase, tokens a second, MFU, peak, each next to its forecast.
- trl (d): TRL's GRPOTrainer with vLLM in its process on the same work, where TRL is installed.
- study (e): SmolLM2 on sums, or the tiny policy where its weights are not there: one run, then several at once.
- ahead (f): `rollout.steps_ahead` of 0 and 1.

Rows go to rows.jsonl in the folder of results, with what was forecast. What fails is a row too, and the next part runs.
Nothing of experiments/ is read, so that the tree may be sent without it.
"""

import argparse
import json
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
CAPS = {"start": 70.0, "faults": 90.0, "steps": 400.0, "trl": 120.0, "study": 70.0, "ahead": 40.0}
"""Seconds of each part, in the order of worth: 13 of the 15 minutes; the rest is starting and packing."""
DRY_CAP_S = 300.0
"""A dry run takes a minute; on a busy machine nothing must end before it has been tried."""
SIZES = {
    "0.5B": ("budget.steps=2",),
    "1.5B": ("budget.steps=1",),
    "7B": ("budget.steps=1", "policy.dtype=bfloat16", "policy.lora={rank: 32, alpha: 32}", "algorithm.num_prompts=16"),
}
"""A quarter of a step for 7B: one update, or it would take two minutes."""
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
    "trainer.sharding.dtype=null",
)  # fmt: skip
SUMS = ("+experiment=four_sums", "evaluation.every=0", "algorithm.num_prompts=6", "algorithm.minibatch_prompts=3")


class Campaign:
    """Runs parts, each until its cap, and writes their rows."""

    def __init__(self, out: Path, tiny: bool, forecasts: dict[str, Any]) -> None:
        self.out, self.tiny, self.forecasts = out, tiny, forecasts
        self.part, self.ends = "", 0.0
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


def steps(campaign: Campaign, folder: Path) -> None:
    for size, more in ({"tiny": ()} if campaign.tiny else SIZES).items():
        if time.monotonic() > campaign.ends:
            campaign.add(size, {"result": "the cap was reached"})
            continue
        policy = folder / f"{size}_policy"
        dtype = "bfloat16" if size == "7B" else "float32"
        made = subprocess.Popen([sys.executable, HERE / "random_policy.py", str(policy), size, dtype])
        if campaign.wait({size: made})[size] != 0:
            campaign.add(size, {"result": "no policy was written before the cap"})
            continue
        overrides = [*WHOLE_STEP, *more, f"policy.path={policy / 'policy'}", f"task.path={policy / 'problems.jsonl'}",
                     f"task.eval_path={policy / 'held_out.jsonl'}"]  # fmt: skip
        if campaign.tiny:
            overrides += DRY
        elif not installed("vllm"):
            overrides.append("rollout=torch")
        overrides.append(f"trainer.accelerator={device()}")
        code = campaign.wait({size: begin(folder / size, *overrides)})[size]
        found: dict[str, Any] = {"result": campaign.ended(folder / size, code)}
        if list((folder / size).rglob("metrics.jsonl")):  # some steps may be there even if it was ended
            found |= of_step(rows(folder / size)[-1], size)
        campaign.add(size, found)
        shutil.rmtree(policy)  # 7B are 15 GB


def of_step(row: dict[str, Any], size: str) -> dict[str, Any]:
    """A step's seconds by phase, its rate, MFU of training against the data sheet's rate, and peak."""
    if "time/train_s" not in row:
        return {}
    found = {
        key.removeprefix("time/"): row[key]
        for key in ("time/generate_s", "time/score_s", "time/train_s", "time/sync_s")
    }
    found |= {"tokens_per_s": row["perf/tokens_per_s"], "peak_gb": row["memory/peak_gb"]}
    if size in SIZES and row["time/train_s"]:
        found["mfu"] = useful(size) / row["time/train_s"] / (GPUS["h100"].tflops * 1e12)
    return found


def prompts(size: str) -> int:
    return 16 if size == "7B" else 64


def useful(size: str) -> float:
    """Operations of a step's updates, without recomputation; for adapters as if all weights were trained."""
    sequences, length = prompts(size) * 16, PROMPT_TOKENS + 512
    work = Tokens(sequences * length, sequences * length**2, sequences * 512)
    cost = Shape.of(qwen2_5(size)).training(work, recomputes=0.0)
    return cost.products + cost.attention


def trl(campaign: Campaign, folder: Path) -> None:
    if not installed("trl") or (ON_GPU and not installed("vllm")):
        campaign.add("0.5B", {"result": "TRL or vLLM is not installed"})
        return
    size = "tiny" if campaign.tiny else "0.5B"
    random_policy.write(folder / "policy", size, "float32")
    command = [
        sys.executable,
        str(HERE / "trl_step.py"),
        str(folder / "policy"),
        *(["--tiny"] if campaign.tiny else []),
    ]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        code = campaign.wait({"trl": process})["trl"]
    found: dict[str, Any] = {"result": campaign.ended(folder, code)}
    if (result := folder / "trl.json").is_file():
        found |= json.loads(result.read_text(encoding="utf-8"))
    campaign.add("0.5B", found)


def study(campaign: Campaign, folder: Path) -> None:
    model = Path("models/smollm2_135m").absolute()
    base: tuple[str, ...] = ("+experiment=dapo", "evaluation.every=0", "budget.steps=12")
    if campaign.tiny:
        base = (*SUMS, "budget.steps=1")
    elif (model / "config.json").is_file():
        base = (
            "+experiment=smollm2_arithmetic",
            "trainer=gpu",
            f"policy.path={model}",
            "evaluation.every=0",
            "budget.steps=12",
        )
    for at_once in (2,) if campaign.tiny else (1, 4):
        began = {
            f"{at_once}_{seed}": begin(
                folder / f"{at_once}_{seed}", *base, f"trainer.accelerator={device()}", f"seed={seed}"
            )
            for seed in range(at_once)
        }
        codes = campaign.wait(began)
        done = [rows(folder / name) for name in codes if list((folder / name).rglob("metrics.jsonl"))]
        paces = [(of[-1]["wall_s"] - of[1]["wall_s"]) / max(len(of) - 2, 1) for of in done if len(of) > 2]
        worst = [campaign.ended(folder / name, code) for name, code in codes.items() if code != 0]
        found: dict[str, Any] = {"result": worst[0] if worst else "works"}
        if paces:
            found |= {"s_a_step": sum(paces) / len(paces), "steps_per_s": sum(1 / pace for pace in paces)}
        campaign.add(f"{at_once} at once", found)


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


PARTS = {"start": start, "faults": faults, "steps": steps, "trl": trl, "study": study, "ahead": ahead}


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
        "steps": {size: forecast_step(size, more) for size, more in SIZES.items()},
        "study": {"1 at once": {"s_a_step": 1.0}},
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
        "tokens_per_s": round(prompts(size) * 16 * (PROMPT_TOKENS + 512) / total),
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
    for name, cap_s in CAPS.items():
        if name in args.parts:
            campaign.run(name, PARTS[name], DRY_CAP_S if args.tiny else cap_s)
    if args.tiny and args.out is None:
        found = [json.loads(line) for line in (place / "rows.jsonl").open(encoding="utf-8")]
        shutil.rmtree(place)
        if broken := [row for row in found if fails(row["measured"])]:
            sys.exit(f"a part does not run: {broken}")


if __name__ == "__main__":
    main()
