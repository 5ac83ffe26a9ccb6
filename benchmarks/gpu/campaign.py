"""Fifteen minutes of one GPU, spent in order of worth: each part has its own cap, every row is written as it comes.

    python benchmarks/gpu/forecasts_of_campaign.py      here: writes forecasts.json, which is committed before a start
    make gpu PART=campaign GPU_PYTHON=python3           there, twice: runs the parts that have not ended yet
    make gpu PART=campaign DRY=1 GPU_PYTHON=.venv-parity/bin/python    on a CPU, at a size of seconds, with TRL

A command on such a machine has ten minutes, so a part starts only if its whole cap is left of them; the same command,
started again with the same --out, goes on there. ARGS="--parts trl study" runs these instead, whatever has ended.

- probe: the engine without a trainer, sampled before and after cuBLAS's workspaces are freed (graph_probe.py).
- product: the rate of a large product, which is what an MFU here and in docs/performance.md is a share of.
- step: whole steps of `+experiment=qwen2_5_0_5b_gsm8k` with fewer prompts (PROMPTS x 16 x 512 at most), random weights
  and a coin flip for a reward, vLLM in a process of its own, without CUDA graphs and eager. Seconds of the start by
  stage; of a step by phase, tokens a second, MFU, peak, recompilations. The first step warms up, the later ones count.
- trl: TRL's GRPOTrainer with vLLM in its process on the work of `step`.
- step_fast: `step` with CUDA graphs and compiled.
- step_1_5b, step_7b: with CUDA graphs if they have made a step of 0.5B and never crashed, otherwise without; eager.
- smollm2: its steps under `trainer=gpu`, under `trainer=fsdp` with one shard, and compiled.
- trainer, head: part d with compiled layers and benchmarks/head.py at 152k words.
- faults, start: what failed at the first start on a GPU, and `trainer=gpu`; four_sums on the GPU and on the machine's
  CPU: the same tokens, and metrics within rounding?
- ahead: `rollout.steps_ahead` of 0 and 1.
- study: the cells of `length_penalty` (experiments/length_penalty), several at once.

A run of whole steps that crashes is started again, with a cap of its own, if something is left to change: after an
out-of-memory with half the micro-batch, otherwise without CUDA graphs, then without compiled code.

Rows go to rows.jsonl in the folder of results, with what was forecast. What fails or lacks a package is a row too, and
the next part runs; the exit code is then 1. Nothing of experiments/ is read, so that the tree may be sent without it.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import graph_probe
import random_policy
from measure import installed, machine, median, versions
from part import DEVICE, ON_GPU, PACKAGES
from runs import begin, learned, rows
from whole_step import (
    CACHE_GB,
    FAST,
    HEAD_TOKENS,
    HEAD_VOCABULARY,
    HEAD_WIDTH,
    PLAIN,
    PROMPTS,
    SIZES,
    STEP_PARTS,
    TRAINER_CASES,
    WHOLE_STEP,
    useful,
    work_of,
)

HERE = Path(__file__).resolve().parent
FORECASTS = HERE / "forecasts.json"
LOAN_S, START_S, COMMAND_S = 900.0, 45.0, 575.0
"""A loan, its start with what is sent there, and what one command may take of the machine's ten minutes."""
CAPS = {
    "probe": 90.0, "product": 30.0, PLAIN: 260.0, "trl": 140.0, FAST: 150.0, "step_1_5b": 180.0, "step_7b": 230.0,
    "smollm2": 100.0, "trainer": 90.0, "head": 60.0, "faults": 90.0, "start": 60.0, "ahead": 40.0, "study": 300.0,
}  # fmt: skip
"""Seconds of each part, in order of worth. A loan is enough for the first six, even if each takes all of its own."""
DRY_CAP_S = 900.0
"""A part of a dry run takes a minute; on a machine with ten times the work nothing must end before it was tried."""
NO_GRAPHS = "rollout.vllm.enforce_eager=true"
ENGINE_FAILED = "vLLM's process failed"
"""As dapo_lit/engines/vllm_engine/process.py says it, which torch would come with."""
MEMORY = "out of memory"
"""In what torch and vLLM say then; a run that ended so is a crash of its micro-batch and of nothing else."""
DRY = (
    "rollout=torch", "algorithm.num_prompts=2", "algorithm.samples_per_prompt=4", "algorithm.minibatch_prompts=1",
    "task.max_response_tokens=16", "algorithm.overlong.cache_tokens=4", "trainer.threads=1", "budget.steps=2",
    "trainer.sharding.dtype=null", "trainer.compile=false",
)  # fmt: skip
SMOLLM2 = Path("models/smollm2_135m").absolute()
SUMS = ("+experiment=four_sums", "evaluation.every=0", "algorithm.num_prompts=6", "algorithm.minibatch_prompts=3")
MOST_HALVINGS = 3
NOT_INSTALLED = "not run: {} is not installed"
NOT_DRY = {"probe", FAST, "step_1_5b", "head"}
"""Parts that a dry run leaves out: the probe needs vLLM, two run the lines of `step`, the head has its own test."""


class Campaign:
    """Runs parts, each until its cap, and writes their rows."""

    def __init__(self, out: Path, tiny: bool, forecasts: dict[str, Any]) -> None:
        self.out, self.tiny, self.forecasts = out, tiny, forecasts
        self.part, self.ends = "", 0.0
        self.again = ""
        """What the part that runs is to be run again with; empty: it is not."""
        file = out / "rows.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        """Those of earlier calls with this folder as well."""
        self.more: list[str] = []
        """Overrides of whole steps."""
        self.policies = (out if tiny else Path(tempfile.gettempdir())) / "campaign_policies"
        """Where random weights are kept, 23 GB, for later parts and calls; not among the results."""
        out.mkdir(parents=True, exist_ok=True)
        if not (out / "conditions.json").is_file():
            found = machine(1) | {"versions": versions(*PACKAGES), "dry": tiny, "date": time.strftime("%Y-%m-%d")}
            self.record_conditions(found)

    def conditions(self) -> dict[str, Any]:
        return cast(dict[str, Any], json.loads((self.out / "conditions.json").read_text(encoding="utf-8")))

    def record_conditions(self, found: dict[str, Any]) -> None:
        (self.out / "conditions.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def ended_parts(self) -> set[str]:
        """The parts that this call or an earlier one has run to their end or cap, and that are not to be run again."""
        last = {row["part"]: row["measured"] for row in self.rows if row["case"] == "took"}
        return {part for part, took in last.items() if not took.get("again")}

    def run_all(
        self, parts: dict[str, Callable[["Campaign", Path], None]], caps: dict[str, float], seconds: float
    ) -> None:
        """Runs parts in their order, some of them again, until the next cap is more than is left of `seconds`."""
        ends = time.monotonic() + seconds
        for name, part in parts.items():
            again = True
            while again:
                if (left := ends - time.monotonic()) < caps[name]:
                    print(f"{name} takes up to {caps[name]:g} s, {left:.0f} are left: the same command goes on there")
                    return
                self.run(name, part, caps[name])
                again = name not in self.ended_parts()

    def run(self, name: str, part: Callable[["Campaign", Path], None], cap_s: float) -> None:
        self.part, self.ends, began = name, time.monotonic() + cap_s, time.monotonic()
        self.again = ""
        print(f"== {name}, at most {cap_s:g} s", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                part(self, Path(folder))
            except Exception as error:
                self.add("failed", {"error": f"{type(error).__name__}: {error}"[-600:]})
        took = {"seconds": round(time.monotonic() - began), "cap_s": cap_s}
        self.add("took", took | ({"again": self.again} if self.again else {}))

    def add(self, case: str, measured: dict[str, Any], like: str | None = None) -> None:
        """A row: appended to the file and printed, with what was forecast next to what was measured.

        like: the case that was forecast, if not this one.
        """
        forecast = self.forecasts.get(self.part, {}).get(like or case, {})
        row = {"part": self.part, "case": case, "measured": measured, "forecast": forecast}
        self.rows.append(row)
        with (self.out / "rows.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        said = [f"{key} {short(value)}{told(forecast, key)}" for key, value in measured.items()]
        print(f"{self.part} | {case} | {', '.join(said)}", flush=True)

    def time_left(self) -> float:
        """Seconds of the part that runs."""
        return self.ends - time.monotonic()

    def wait(self, processes: dict[str, "subprocess.Popen[bytes]"]) -> dict[str, int | None]:
        """Exit codes; None for a process that was ended at the cap."""
        codes: dict[str, int | None] = {}
        for name, process in processes.items():
            try:
                codes[name] = process.wait(max(self.time_left(), 0.0))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):  # engines are processes of their own, and hold the card
                    os.killpg(process.pid, signal.SIGKILL)
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


def product(campaign: Campaign, folder: Path) -> None:
    """In a process of its own, so that this one takes no memory of the card."""
    size, dtype, run = *((512, "float32") if campaign.tiny else (8192, "bfloat16")), folder / "product"
    program = f"import torch; from c_head import product_rate; print(product_rate({size}, torch.{dtype}) / 1e12)"
    code = campaign.wait({"product": begin_command(run, "-c", program)})["product"]
    if code != 0:
        raise RuntimeError(campaign.ended(run, code))
    tflops = float((run / "log.txt").read_text(encoding="utf-8").split()[-1])
    campaign.record_conditions(campaign.conditions() | {"product_tflops": round(tflops, 3)})
    campaign.add(f"{dtype}, {size:,}³", {"tflops": tflops})


def probe(campaign: Campaign, folder: Path) -> None:
    """Whether a sample of the engine survives what frees cuBLAS's workspaces, and what follows from that."""
    if not installed("vllm"):
        campaign.add("engine alone", {"result": NOT_INSTALLED.format("vllm")})
        return
    run = folder / "probe"
    policy = str(written(campaign, "0.5B"))
    code = campaign.wait({"probe": begin_command(run, str(HERE / "graph_probe.py"), policy)})["probe"]
    file = run / "probe.json"
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    campaign.keep(run)
    said, graphs_crash = graph_probe.conclusion(found)
    # The last phase is there to crash.
    result = "works" if graph_probe.FREED in found and not graphs_crash else campaign.ended(run, code)
    campaign.add("engine alone", {"result": result, **found, "conclusion": said, "graphs_crash": graphs_crash})


def step(campaign: Campaign, folder: Path) -> None:
    """One run of whole steps. What an earlier run of the size or of graphs crashed by is changed; a crash of this one
    asks for another run, if there is something to change."""
    size = STEP_PARTS[campaign.part]
    way = way_of(campaign, size)
    case, run = f"{size}, {way.words}", folder / campaign.part
    policy = written(campaign, size)
    code = campaign.wait({size: begin_step(campaign, run, size, policy, *SIZES[size], *way.overrides)})[size]
    steps = rows(run)[1:] if list(run.rglob("metrics.jsonl")) else []  # some may be there even if it was ended
    for row in steps:
        like = f"{size}, step {min(row['step'], 2)}"  # the first one compiles and is not forecast
        campaign.add(f"{case}, step {row['step']}", of_step(row, size, campaign.conditions()), like)
    campaign.keep(run)
    found = {"result": campaign.ended(run, code), "steps": len(steps), "size": size, **vars(way)}
    said = (run / "log.txt").read_text(encoding="utf-8")
    if code and MEMORY in said.lower():
        found["memory"] = True
    if ENGINE_FAILED in said:  # the run goes on without graphs
        found["engine_failed"] = True
    stages = run / "stages.json"
    campaign.add(case, found | (json.loads(stages.read_text(encoding="utf-8")) if stages.is_file() else {}), like=size)
    later = way_of(campaign, size)
    if crashed(found) and later != way and (later.graphs or later.compiles or campaign.part != FAST):
        campaign.again = later.words  # of FAST, plain is what PLAIN was


@dataclass(frozen=True)
class Way:
    """How a size is run."""

    graphs: bool
    """The engine's CUDA graphs."""
    compiles: bool
    """Layers and the head."""
    halvings: int = 0
    """Of the micro-batch that is forecast to fit."""

    @property
    def words(self) -> str:
        said = ["with CUDA graphs" if self.graphs else "without CUDA graphs"]
        said += ["compiled" if self.compiles else "eager"]
        return ", ".join([*said, *([f"micro-batch / {2**self.halvings}"] if self.halvings else [])])

    @property
    def overrides(self) -> list[str]:
        return [*([] if self.graphs else [NO_GRAPHS]), f"trainer.compile={str(self.compiles).lower()}"]


def way_of(campaign: Campaign, size: str) -> Way:
    """By the crashes so far, those of earlier calls too: only a crash takes something away, the end of a cap nothing.

    Of a later size, graphs are what has made a step, so that it does not depend on a first try of them.
    """
    runs = [row["measured"] for row in campaign.rows if "halvings" in row["measured"]]
    own = [run for run in runs if run["size"] == size]
    crashes = [run for run in runs if crashed(run) and not run.get("memory")]
    graphs = not any(run["graphs"] for run in [*crashes, *(run for run in runs if run.get("engine_failed"))])
    graphs &= not any(row["measured"].get("graphs_crash") for row in campaign.rows)
    if campaign.part != FAST:
        graphs &= campaign.part != PLAIN and any(run["graphs"] and run["steps"] for run in runs)
    return Way(
        graphs,
        # Where graphs may have been the cause, they go first.
        compiles=campaign.part == FAST and not any(run["compiles"] and not run["graphs"] for run in crashes),
        halvings=min(MOST_HALVINGS, sum(run.get("memory", False) for run in own)),
    )


def crashed(run: dict[str, Any]) -> bool:
    """Ended by itself and not well."""
    return bool(run["result"].startswith("code "))


def written(campaign: Campaign, size: str) -> Path:
    """A folder with a policy of random weights and problems; an earlier part or call may have written it."""
    dtype = "bfloat16" if size == "7B" else "float32"
    policy = campaign.policies / size
    if (policy / random_policy.LAST).is_file():
        return policy
    if campaign.tiny:  # in this process: another one would import for longer than it writes
        return random_policy.write(policy, "tiny", dtype)
    command = [sys.executable, str(HERE / "random_policy.py"), str(policy), size, dtype]
    if campaign.wait({size: subprocess.Popen(command)})[size] != 0:
        raise RuntimeError("no policy was written before the cap")
    return policy


def begin_step(campaign: Campaign, folder: Path, size: str, policy: Path, *more: str) -> "subprocess.Popen[bytes]":
    """In the sizes that `auto` finds for a whole H100, which is the forecast: to find them again takes a minute."""
    fit, halvings = campaign.forecasts[campaign.part][f"{size}, step 2"], way_of(campaign, size).halvings
    tokens = fit["micro_batch_tokens"] >> halvings
    sizes = (f"trainer.micro_batch_tokens={tokens}", f"rollout.vllm.kv_cache_gb={CACHE_GB[size]}",
             f"trainer.activation_checkpointing={fit['recomputation']}")  # fmt: skip
    overrides = [*WHOLE_STEP, f"policy.path={policy / 'policy'}", f"task.path={policy / 'problems.jsonl'}",
                 f"task.eval_path={policy / 'held_out.jsonl'}"]  # fmt: skip
    if not campaign.tiny and not installed("vllm"):
        overrides.append("rollout=torch")
    prompts = f"algorithm.num_prompts={PROMPTS[size]}"
    overrides += [prompts, *sizes, *more, *campaign.more, *(DRY if campaign.tiny else ())]
    return begin(folder, *overrides, f"trainer.accelerator={device()}", program=(str(HERE / "staged_run.py"),))


def of_step(row: dict[str, Any], size: str, conditions: dict[str, Any]) -> dict[str, Any]:
    """A step's seconds by phase, its rate, peak, and MFU of training against the measured rate of a product."""
    if "time/train_s" not in row:
        return {}
    found = {
        key.removeprefix("time/"): row[key]
        for key in ("time/generate_s", "time/score_s", "time/train_s", "time/sync_s")
    }
    found |= {"tokens_per_s": row["perf/tokens_per_s"], "peak_gb": row["memory/peak_gb"]}
    found |= {"recompiles": row["perf/recompiles"], "length_mean": row["rollout/length_mean"]}
    if row["time/train_s"] and "product_tflops" in conditions:
        work = work_of(size, row["rollout/length_mean"], row["rollout/length_cv"])
        found["mfu"] = useful(size, work) / row["time/train_s"] / (conditions["product_tflops"] * 1e12)
    return found


def trl(campaign: Campaign, folder: Path) -> None:
    lacking = [name for name in ("trl", *(("vllm",) if ON_GPU else ())) if not installed(name)]
    if lacking:
        campaign.add("0.5B", {"result": NOT_INSTALLED.format(" and ".join(lacking))})
        return
    options = ["--tiny"] if campaign.tiny else ["--prompts", str(PROMPTS["0.5B"])]
    began = begin_command(folder / "TRL", str(HERE / "trl_step.py"), str(written(campaign, "0.5B")), *options)
    code = campaign.wait({"trl": began})["trl"]
    found: dict[str, Any] = {"result": campaign.ended(folder / "TRL", code)}
    if (result := folder / "TRL" / "trl.json").is_file():
        found |= json.loads(result.read_text(encoding="utf-8"))
    campaign.keep(folder / "TRL")
    campaign.add("0.5B", found)


def begin_command(folder: Path, *command: str) -> "subprocess.Popen[bytes]":
    """Starts Python in a folder, with the paths that `make gpu` gives."""
    folder.mkdir(parents=True)
    paths = [*map(str, (HERE, HERE.parent, HERE.parents[1])), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with (folder / "log.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip


def script(campaign: Campaign, folder: Path, file: Path, record: str, *options: str) -> dict[str, Any]:
    """Runs a benchmark of its own; the results of its JSON, which stays with the campaign's."""
    tiny = ["--tiny", "--repeats", "2"] if campaign.tiny else []
    began = begin_command(folder / "script", str(file), *options, *tiny, "--out", str(campaign.out.absolute()))
    code = campaign.wait({"script": began})["script"]
    print((folder / "script" / "log.txt").read_text(encoding="utf-8")[-4000:], flush=True)
    campaign.keep(folder / "script")
    campaign.add(file.stem, {"result": campaign.ended(folder / "script", code)})
    written = campaign.out / f"{record}.json"
    return json.loads(written.read_text(encoding="utf-8"))["results"] if written.is_file() else {}


def head(campaign: Campaign, folder: Path) -> None:
    sizes = ("--vocabulary", str(HEAD_VOCABULARY), "--hidden", str(HEAD_WIDTH), "--tokens", str(HEAD_TOKENS))
    more = ("--device", DEVICE, "--no-errors", "--dtype", "bfloat16" if ON_GPU else "float32")
    for of_tokens in script(campaign, folder, HERE.parent / "head.py", "head", *sizes, *more).values():
        for name, found in of_tokens.items():
            campaign.add(name, {"ms": 1e3 * median(found["seconds"]), "peak_gb": found["memory"] / 1e9})
    for name in ("trl", "liger_kernel"):
        if not installed(name):
            campaign.add(name, {"result": NOT_INSTALLED.format(name)})


def trainer(campaign: Campaign, folder: Path) -> None:
    # A CPU takes minutes to compile, and tests/policy/test_compiled.py has what comes of it.
    compiled = [] if campaign.tiny else ["--compiled"]
    record = "d_trainer_compiled" if compiled else "d_trainer"
    cases = map(str, TRAINER_CASES)
    for name, found in script(campaign, folder, HERE / "d_trainer.py", record, *compiled, "--cases", *cases).items():
        if isinstance(found, dict):
            peak = found.pop("peak_bytes", None)
            campaign.add(name, found | {"peak_gb": peak and peak / 1e9})


def smollm2(campaign: Campaign, folder: Path) -> None:
    """In the same sizes, so that the seconds of `trainer=gpu` and of one shard of FSDP2 are of the same work."""
    base: tuple[str, ...] = ("+experiment=smollm2_arithmetic", f"policy.path={SMOLLM2}", "budget.steps=8")
    if campaign.tiny:
        base = (*SUMS, "budget.steps=2")
    elif not (SMOLLM2 / "config.json").is_file():
        campaign.add("trainer=gpu", {"result": f"{SMOLLM2.name} was not brought: `make model` fetches it"})
        return
    sizes = ("trainer.micro_batch_tokens=16384", "trainer.activation_checkpointing=none")
    ways: dict[str, tuple[str, ...]] = {
        "trainer=gpu": ("trainer=gpu",),
        "trainer=fsdp, one shard": ("trainer=fsdp", "trainer.devices=1"),
    }
    if not campaign.tiny:
        ways["trainer=gpu, compiled"] = ("trainer=gpu", "trainer.compile=true")
    for name, more in ways.items():
        overrides = (*base, *more, *sizes, "evaluation.every=0", f"trainer.accelerator={device()}")
        run = folder / name.replace(", ", "_").replace(" ", "_")
        code = campaign.wait({name: begin(run, *overrides)})[name]
        found: dict[str, Any] = {"result": campaign.ended(run, code)}
        if list(run.rglob("metrics.jsonl")) and len(of := rows(run)) > 2:
            found |= {"s_a_step": (of[-1]["wall_s"] - of[2]["wall_s"]) / (len(of) - 3) if len(of) > 3 else None}
            found |= {"peak_gb": [row["memory/peak_gb"] for row in of[1:]]}
            found |= {key: of[-1][f"time/{key}"] for key in ("generate_s", "train_s", "sync_s")}
        campaign.keep(run)
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
    "probe": probe, "product": product, PLAIN: step, "trl": trl, FAST: step, "step_1_5b": step, "step_7b": step,
    "smollm2": smollm2, "trainer": trainer, "head": head, "faults": faults, "start": start, "ahead": ahead,
    "study": study,
}  # fmt: skip


def device() -> str:
    return "gpu" if DEVICE == "cuda" else "cpu"


def fails(measured: dict[str, Any]) -> bool:
    result = measured.get("result", "works")
    return "error" in measured or result != "works"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a size of seconds, on a CPU")
    parser.add_argument("--repeats", type=int, help="of no effect here: `make gpu` gives it to every part")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="these, whatever has ended; default: what has not")
    parser.add_argument("--cap_s", type=float, help="of each part instead of its own")
    parser.add_argument(
        "--seconds", type=float, default=COMMAND_S, help="no part starts whose cap is more than is left"
    )
    parser.add_argument("--set", nargs="+", default=[], help="overrides of whole steps, such as KEY=VALUE")
    parser.add_argument("--out", type=Path, help="folder of results; default benchmarks/results/gpu/DATE_campaign")
    args = parser.parse_args()
    place = args.out or HERE.parent / "results" / "gpu" / f"{time.strftime('%Y-%m-%d')}_campaign"
    dry = Path(tempfile.mkdtemp()) if args.tiny and args.out is None else None
    campaign = Campaign(dry or place, args.tiny, json.loads(FORECASTS.read_text(encoding="utf-8")))
    campaign.more, earlier = args.set, len(campaign.rows)
    skipped = {} if args.parts else campaign.ended_parts() | (NOT_DRY if args.tiny else set())
    parts = {name: PARTS[name] for name in PARTS if name in (args.parts or PARTS) and name not in skipped}
    caps = dict.fromkeys(PARTS, DRY_CAP_S) if args.tiny else {name: args.cap_s or CAPS[name] for name in PARTS}
    campaign.run_all(parts, caps, float("inf") if args.tiny else args.seconds)
    if dry:
        shutil.rmtree(dry)
    if broken := [f"{row['part']}, {row['case']}" for row in campaign.rows[earlier:] if fails(row["measured"])]:
        sys.exit(f"failed or not run: {'; '.join(broken)}")


if __name__ == "__main__":
    main()
