"""Walks the roads that people take, as they would, and says what of the code lies on them.

    python benchmarks/roads.py                                    # all of them, half an hour on two loaded cores
    python benchmarks/roads.py logs cluster                       # some of them
    python benchmarks/roads.py --out benchmarks/results/roads.json
    python benchmarks/roads.py --vllm .venv-vllm/bin/python       # with the step that samples by vLLM

Every command runs in an empty folder, at a size of seconds, under `coverage`: in its own process and in all that it
starts. Of a road are given the seconds (under coverage, which takes two to four times as long as without), the files
with a function that was called, the executable lines inside functions that ran, and the lines of the files that were
imported. Of a building, the share of its executable lines that any road ran; lines of a module or a class run where
their file is imported, so the share of lines inside functions is given too.

Left out: what a GPU, NCCL or a second machine would run, and processes that were killed, which leave no trace.
"""

import argparse
import ast
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from coverage import Coverage, CoverageData

ROOT = Path(__file__).resolve().parents[1]
BUILDINGS = [name for name in ("dapo_lit", "ablations", "math_answers", "dapo_lit_tools") if (ROOT / name).is_dir()]
SMALL = (
    "algorithm.num_prompts=4 algorithm.minibatch_prompts=2 algorithm.samples_per_prompt=4 evaluation.samples=1 "
    "task.num_heldout=16"
)
SERVING = {
    "VLLM_SERVER_DEV_MODE": "1", "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_API_KEY": "of these roads",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
"""What the line that starts a server sets."""
LIMIT_S = 1200
Lines = dict[str, set[int]]
"""File -> lines that ran."""


class RoadError(Exception):
    """A command that did not do what a person on the road was promised."""


@dataclass
class Road:
    """One person's way: a folder, and what ran in it."""

    name: str
    work: Path
    seconds: float = 0.0
    lines: Lines = field(default_factory=dict)
    python: str = sys.executable
    begun: dict[Path, float] = field(default_factory=dict)
    """When each command began, by the folder of its traces."""

    def __call__(self, line: str, code: int = 0, python: str | None = None) -> str:
        """Runs `dapo-lit LINE`, or a line that begins with `python`, to its end; what it printed."""
        process, traces = self.start(line, python)
        said, _ = process.communicate(timeout=LIMIT_S)
        self.finish(line, traces)
        if process.returncode != code:
            raise RoadError(f"{self.name}: {line}\nexit code {process.returncode}, not {code}\n{said[-3000:]}")
        return said

    def start(self, line: str, python: str | None = None) -> tuple["subprocess.Popen[str]", Path]:
        self.work.mkdir(exist_ok=True)
        traces = self.work.with_name(f"{self.name}.traces_{len(self.begun)}")
        traces.mkdir()
        settings = traces / "coveragerc"
        include = "\n    ".join(f"{ROOT}/{name}/*" for name in BUILDINGS)
        # `_exit`, `fork`: reward workers and cells are forked, and end without Python's own clean-up.
        settings.write_text(
            f"[run]\nparallel = true\nsigterm = true\npatch =\n    _exit\n    fork\ndata_file = {traces}/data\n"
            f"include =\n    {include}\ndisable_warnings = no-data-collected,module-not-measured\n",
            encoding="utf-8",
        )
        environment = {
            **os.environ, "COVERAGE_PROCESS_START": str(settings), "PYTHONPATH": f"{ROOT}:.", "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1", "DAPO_LIT_CACHE": str(self.work.with_name("cache")), "CUDA_VISIBLE_DEVICES": "",
            **SERVING,
        }  # fmt: skip
        self.begun[traces] = time.perf_counter()
        words = shlex.split(line)
        return subprocess.Popen(
            [python or self.python, *(words[1:] if words[0] == "python" else ["-m", "dapo_lit", *words])],
            cwd=self.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        ), traces

    def finish(self, line: str, traces: Path) -> None:
        seconds = time.perf_counter() - self.begun[traces]
        self.seconds += seconds
        for file, ran in traced(traces).items():
            self.lines.setdefault(file, set()).update(ran)
        print(f"{self.name:9} {seconds:6.1f} s  {line[:120]}", flush=True)

    def must_have(self, *files: str) -> None:
        if missing := [file for file in files if not (self.work / file).is_file()]:
            raise RoadError(f"{self.name}: {missing} were not written")

    def write(self, name: str, text: str) -> None:
        self.work.mkdir(exist_ok=True)
        (self.work / name).write_text(text, encoding="utf-8")


def traced(traces: Path) -> Lines:
    """The lines that the processes of one command ran."""
    found: Lines = {}
    for file in sorted(traces.glob("data.*")):
        data = CoverageData(basename=str(file))
        data.read()
        for name in data.measured_files():
            # Templates of Jinja run under the names of their files.
            if (ran := data.lines(name)) and name.endswith(".py"):
                found.setdefault(name, set()).update(ran)
    return found


@dataclass(frozen=True)
class Source:
    """A file: how many lines it has, which of them are executable, which of those are inside functions."""

    lines: int
    statements: frozenset[int]
    inside: frozenset[int]


@cache
def source(file: str) -> Source:
    text = Path(file).read_text(encoding="utf-8")
    statements = frozenset(Coverage(data_file=None).analysis2(file)[1])
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside.update(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
    return Source(text.count("\n"), statements, statements & inside)


def measured(lines: Lines) -> dict[str, int]:
    """What one road ran, as it goes into the table."""
    called = {file: ran & source(file).inside for file, ran in lines.items()}
    return {
        "files_called": sum(bool(ran) for ran in called.values()),
        "lines_called": sum(map(len, called.values())),
        "files_imported": len(lines),
        "lines_imported": sum(source(file).lines for file in lines),
        "executable_imported": sum(len(source(file).statements) for file in lines),
    }


def shares(building: str, lines: Lines) -> dict[str, Any]:
    """What of a building the roads ran, and the files of which no function was called."""
    files = [str(file) for file in sorted((ROOT / building).rglob("*.py"))]
    statements = sum(len(source(file).statements) for file in files)
    inside = sum(len(source(file).inside) for file in files)
    ran = {file: lines.get(file, set()) for file in files}
    unreached = [file for file in files if source(file).inside and not ran[file] & source(file).inside]
    return {
        "files": len(files),
        "lines": sum(source(file).lines for file in files),
        "executable": statements,
        "reached": sum(len(ran[file] & source(file).statements) for file in files) / max(statements, 1),
        "reached_inside": sum(len(ran[file] & source(file).inside) for file in files) / max(inside, 1),
        "unreached": [Path(file).relative_to(ROOT).as_posix() for file in unreached],
    }


# --- the roads -----------------------------------------------------------------------------------------------------


def readme(road: Road) -> None:
    """README's two commands, and the pages and commands that they lead to."""
    run = "runs/dapo/dapo/seed_0"
    road(f"train +experiment=dapo +regime=joint {SMALL} budget.steps=3 replay.record=[2] logger.rollouts_every=1")
    road.must_have(f"{run}/run.html")
    road(
        f"train -m +experiment=add_soft_punishment {SMALL} budget.steps=2 seed=0,1 study.underpowered=true "
        "evaluation.final_samples=2"
    )
    road.must_have("runs/add_soft_punishment/report/report.html")
    road("report runs/add_soft_punishment")
    road("status runs/add_soft_punishment")
    road(f"advise {run}")
    road(f"replay {run} step=2 --html")
    road.must_have(f"{run}/replay/step_000002.html")
    forked = "fork.steps=[2] fork.horizon=1 study.arms=[dapo-clip_higher] study.seeds=[0]"
    road(f"train -m +study=fork fork.run={run} {forked}")  # docs/tutorials/ask_your_own_run.md
    road("docs ablate")


def own_algorithm(road: Road) -> None:
    """A loss and a reward of one's own, and the techniques on top of them (docs/new_loss.md, docs/rewards.md)."""
    shutil.copytree(ROOT / "docs/examples/soft_clip", road.work)
    road.write(
        "my_rewards.py",
        "def right(problems, completions):\n"
        "    return [float(text.rpartition('#')[2] == p.answer) for p, text in zip(problems, completions)]\n",
    )
    # On the regime's base policy, which is shipped: another would be pre-trained for minutes.
    own = f"+regime=joint {SMALL} budget.steps=2 preflight=true reward.function=my_rewards.right"
    road(f"train --config-dir conf +experiment=soft_clip {own}")
    loss = "algorithm.loss=my_losses.soft_clip '+algorithm.loss_options={width: 0.2}'"
    arms = "study.arms=[dapo,dapo-dynamic_sampling] 'seed=range(0,2)' study.underpowered=true study.pilot=true"
    road(f"train -m +study=leave_one_out {own} {loss} {arms} evaluation.final_samples=1")


def arrival(road: Road, vllm: str | None = None) -> None:
    """A script of verl's, problems and a model of one's own: converted, ablated, by vLLM too where it is there."""
    road(f"convert {ROOT}/tests/scripts_elsewhere/verl_gsm8k_lora.sh")
    road(f"convert {ROOT}/tests/scripts_elsewhere/trl_dapo.txt", code=2)
    road(f"train +experiment=dapo +regime=joint {SMALL} budget.steps=1 preflight=false study_name=model")
    road("export runs/model/dapo/seed_0 output=model license=apache-2.0")
    rows = [{"question": f"{a}+{b}+1=", "solution": a + b + 1} for a in range(1, 9) for b in range(1, 9)]
    road.write("sums.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    own = (
        "--model model --data sums.jsonl task.template=plain reward.extraction=hash task.max_response_tokens=24 "
        "task.max_prompt_tokens=24 algorithm.num_prompts=8 algorithm.minibatch_prompts=4 budget.steps=2 "
        "algorithm.samples_per_prompt=4 algorithm.overlong.cache_tokens=6 evaluation.samples=1"
    )
    asked = f"ablate dynamic_sampling {own} --yes study.until=null study.underpowered=true 'study.seeds=[0,1]'"
    road(asked)
    road(f"ablate all {own} --plan --budget 100h study.pilot=true study_name=all")
    if vllm:
        road(f"{asked} study_name=by_vllm rollout=vllm", python=vllm)
        alone = "rollout=vllm rollout.vllm.placement=process rollout.vllm.kv_cache_gb=0.25 logger.progress=none"
        road(f"train +experiment=dapo +regime=joint {SMALL} budget.steps=2 {alone} study_name=apart", python=vllm)
        served(road, vllm)


def served(road: Road, vllm: str) -> None:
    """A run that samples from a server of vLLM, started by the line that the run prints where none answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    line = (
        f"train +experiment=dapo +regime=joint {SMALL} budget.steps=2 study_name=served rollout=vllm "
        f"rollout.vllm.placement=server 'rollout.vllm.server.urls=[{url}]' rollout.vllm.server.folder=shared "
        "rollout.vllm.server.wait_s=0 logger.progress=none"
    )
    said = road(line, code=2, python=vllm)
    [asked] = [line.partition(" vllm serve ")[2] for line in said.splitlines() if " vllm serve " in line]
    # as docs/vllm.md has it for vllm-cpu; without compilation, which takes longer than the run
    cheap = "--block-size 32 --no-enable-chunked-prefill --enforce-eager --kv-cache-memory-bytes 134217728"
    server, traces = road.start(f"python -m vllm.entrypoints.openai.api_server --model {asked} {cheap}", vllm)
    try:
        road(line.replace("wait_s=0", "wait_s=300"), python=vllm)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    road.finish("vllm serve", traces)


def logs(road: Road) -> None:
    """Finished logs of another trainer and a ledger, to a decision (docs/decide.md)."""
    shutil.copytree(ROOT / "tests/ablations/trl_logs", road.work / "logs")
    shutil.rmtree(road.work / "logs/clip_0.28/seed_2")  # five runs
    metric = "--metric rewards/accuracy/mean"
    road(f"report --from trl logs {metric}")
    road(f"decide --from trl logs {metric} --reference clip_0.2", code=3)
    road("advise --from trl logs/clip_0.2/seed_0")
    pairs = [(0.41, 0.44), (0.38, 0.43), (0.45, 0.46), (0.40, 0.47), (0.39, 0.42), (0.42, 0.45), (0.41, 0.48)]
    rows = [f"lr,{seed},{a},{b}" for seed, (a, b) in enumerate(pairs)]
    road.write("ledger.csv", "change,seed,without,with\n" + "\n".join(rows) + "\n")
    road("decide ledger.csv")
    road("decide ledger.csv --for claims --json", code=3)


def cluster(road: Road) -> None:
    """A plan for 32B, shards over two processes, a killed and resumed run, an evaluation, an export."""
    road("plan +experiment=paper_qwen2_5_32b hardware=h800 quick=true")
    sums = "train +experiment=four_sums evaluation.samples=1 logger.progress=none"
    road(f"{sums} trainer=fsdp trainer.accelerator=cpu trainer.devices=2 trainer.sharding.dtype=null "
         "trainer.activation_checkpointing=none trainer.threads=1 budget.steps=2 study_name=shards")  # fmt: skip
    resumable = (
        f"train +experiment=dapo +regime=joint {SMALL} budget.steps=3 trainer.checkpoint_every=1 study_name=killed "
        "resume=auto logger.progress=none"
    )
    process, traces = road.start(resumable)
    kept = road.work / "runs/killed/dapo/seed_0/checkpoints"
    until = time.perf_counter() + LIMIT_S
    while not [*kept.glob("step_*.ckpt")] and process.poll() is None and time.perf_counter() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    road.finish(f"{resumable}  # killed", traces)
    road(resumable)
    road("evaluate ckpt=runs/killed/dapo/seed_0 benchmark=chain_sum_heldout limit=8 n=2")
    road("export runs/killed/dapo/seed_0 output=exported license=apache-2.0")


def pages(road: Road) -> None:
    """What the pages begin with to which README leads: algorithms, models, tasks, turns, steps ahead, the library."""
    small = "algorithm.num_prompts=4 algorithm.minibatch_prompts=2 evaluation.samples=1 logger.progress=none"
    four = f"+experiment=four_sums {small}"
    # docs/algorithms.md
    others = "grpo,rloo,reinforce_plus_plus,dr_grpo,gspo,gmpo,cispo,clip_cov,kl_cov"
    road(f"train -m {four} budget.steps=2 algorithm.samples_per_prompt=24 algorithm={others}")
    road(f"train {four} budget.steps=2 algorithm=ppo algorithm.critic.warmup_steps=1 algorithm.kl.beta=0.1")
    # docs/overlap.md, docs/mismatch.md
    road(f"train {four} budget.steps=3 rollout.steps_ahead=1 algorithm.correction.kind=tis study_name=ahead")
    # docs/models.md
    road(f"train {four} budget.steps=1 'policy.lora={{rank: 4, alpha: 8}}' study_name=lora")
    # docs/tasks.md, on a policy that was trained for two updates and on base policies that a clone has; docs/turns.md
    once = f"{small} budget.steps=1 task.num_heldout=8"
    [stage, *_] = yaml.safe_load((ROOT / "conf/task/parity.yaml").read_text(encoding="utf-8"))["base"]["stages"]
    shown = yaml.safe_dump([stage | {"updates": 2, "batch_size": 4}], default_flow_style=True, width=10_000).strip()
    road(f"train +regime=parity {once} {shlex.quote(f'task.base.stages={shown}')} study_name=parity")
    bases = ROOT / "experiments/bases"
    for regime in ("programs", "calculator"):
        packed = f"policy.base_from={bases}/factorial_half_{regime} evaluation.final_samples=1"
        road(f"train +study=factorial_half +regime={regime} study.arm=dapo seed=52 {once} {packed}")
    # docs/rewards.md
    own = "reward.rule=sympy 'reward.weights={correctness: 1, format: 0.1, length: 0.1}' reward.extraction=number"
    road(f"train {four} budget.steps=1 {own} study_name=rewards")
    # docs/library.md
    page = (ROOT / "docs/library.md").read_text(encoding="utf-8")
    road.write("own_trainer.py", page.split('```python title="own_trainer.py"\n')[1].split("```")[0])
    road("python own_trainer.py")
    road.write(
        "program.py",
        "from dapo_lit import train\nrun = train('four_sums', steps=2, settings={'logger.rollouts_every': 1})\n"
        "print(run.metrics['rollout/accuracy'], run.completions(2), run.page)\n",
    )
    road("python program.py")


ROADS: dict[str, Callable[[Road], None]] = {
    "readme": readme, "algorithm": own_algorithm, "arrival": arrival, "logs": logs, "cluster": cluster, "pages": pages,
}  # fmt: skip


def train_alone(road: Road) -> None:
    """`make train`"""
    road(f"train +experiment=dapo +regime=joint {SMALL} budget.steps=3 replay.record=[2] logger.rollouts_every=1")


def walked(name: str, goes: Callable[[Road], None], folder: Path) -> Road:
    """The road, walked now or, in a folder that is kept, before."""
    road, kept = Road(name, folder / name), folder / f"{name}.json"
    if kept.is_file():
        before = json.loads(kept.read_text(encoding="utf-8"))
        road.seconds, road.lines = before["seconds"], {file: {*ran} for file, ran in before["lines"].items()}
        return road
    for left in folder.glob(f"{name}.traces_*"):
        shutil.rmtree(left)
    shutil.rmtree(road.work, ignore_errors=True)
    goes(road)
    lines = {file: sorted(ran) for file, ran in road.lines.items()}
    kept.write_text(json.dumps({"seconds": road.seconds, "lines": lines}), encoding="utf-8")
    return road


def walk(names: Iterable[str], folder: Path, vllm: str | None) -> dict[str, Any]:
    """The first road is the command `make train` alone: what a training process and those that it starts load."""
    ways = {name: partial(arrival, vllm=vllm) if name == "arrival" else ROADS[name] for name in names}
    found: dict[str, Any] = {}
    everything: Lines = {}
    for name, goes in {"train": train_alone, **ways}.items():
        road = walked(name, goes, folder)
        for file, ran in road.lines.items():
            everything.setdefault(file, set()).update(ran)
        does = (getattr(goes, "func", goes).__doc__ or "").strip().rstrip(".")
        found[name] = {"does": does, "seconds": round(road.seconds), **measured(road.lines)}
    return {"roads": found, "vllm": bool(vllm), "buildings": {name: shares(name, everything) for name in BUILDINGS}}


def show(found: dict[str, Any]) -> None:
    print(f"\n{'road':10}{'s':>6}{'files':>7}{'called':>8}{'imported':>10}{'executable':>12}")
    for name, road in found["roads"].items():
        print(f"{name:10}{road['seconds']:6}{road['files_called']:7}{road['lines_called']:8}"
              f"{road['lines_imported']:10}{road['executable_imported']:12}")  # fmt: skip
    print(f"\n{'building':16}{'files':>6}{'lines':>8}{'executable':>12}{'reached':>9}{'in functions':>14}")
    for name, part in found["buildings"].items():
        print(f"{name:16}{part['files']:6}{part['lines']:8}{part['executable']:12}{part['reached']:9.0%}"
              f"{part['reached_inside']:14.0%}")  # fmt: skip
        print("".join(f"    no function called: {file}\n" for file in part["unreached"]), end="")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roads", nargs="*", help=f"default: all ({', '.join(ROADS)})")
    parser.add_argument("--out", type=Path, help="a file for the result, as JSON")
    parser.add_argument("--vllm", help="the Python of an environment with vLLM and coverage (make vllm-cpu)")
    parser.add_argument("--keep", type=Path, help="a folder to keep; a road is walked there once")
    options = parser.parse_args()
    if unknown := set(options.roads) - set(ROADS):
        parser.error(f"{', '.join(unknown)}: the roads are {', '.join(ROADS)}")
    with tempfile.TemporaryDirectory(prefix="roads_") as temporary:
        folder = options.keep.absolute() if options.keep else Path(temporary)
        folder.mkdir(exist_ok=True)
        try:
            found = walk(options.roads or ROADS, folder, options.vllm)
        except RoadError as reason:
            print(f"FAILED {reason}")
            return 1
    show(found)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
