"""Rehearses the Python paths of a GPU without one: `make gpu-rehearsal`.

    python rehearse.py            all paths; then what failed at earlier starts on a card, put back one at a time: each
                                  must fail the path that is named with it
    python rehearse.py WORDS      the paths and faults with one of the words in their name

Run by the Python of an environment that has torch built for CUDA, and vLLM: its libraries find the card of fake_cuda.c,
whose kernels are those of host_kernels.py. Each path is `python -m dapo_lit.train` in a process of its own, forked from
one that has imported the libraries. Exit code 1: a path fails, or a fault does not.

Compiled layers are traced, guarded and counted as on a card; their graphs run operator by operator, because code that
Inductor makes for a card would compute nothing. vLLM's own kernels compute nothing: its samples are one token
repeated, so the probe that compares it with the trainer is off.
"""

import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIBRARIES = (
    "torch",
    "torch._dynamo",
    "lightning.pytorch",
    "transformers",
    "peft",
    "pandas",
    "scipy.stats",
    "hydra",
    "aiohttp",
)
COPIED = ("dapo_lit", "ablations", "math_answers", "conf", "docs", "pyproject.toml")
Rows = list[dict[str, Any]]

SUMS = (
    "+experiment=four_sums", "evaluation.every=0", "algorithm.num_prompts=6", "algorithm.minibatch_prompts=3",
    "evaluation.samples=1", "logger.progress=none",
)  # fmt: skip
CARD = ("trainer.accelerator=gpu",)
SHARD = ("trainer=fsdp", "trainer.devices=1")
VLLM = (
    "rollout=vllm", "rollout.vllm.kv_cache_gb=0.1", "rollout.vllm.placement=colocated", "preflight=false",
    "trainer.accelerator=gpu", "algorithm.techniques.dynamic_sampling=false", "rollout.max_batch_size=8",
)  # fmt: skip
EAGER, SERVER = "rollout.vllm.enforce_eager=true", "rollout.vllm.placement=server"
KEY = {"VLLM_API_KEY": "of-a-rehearsal"}
COIN = """
import random

def flips(problems, completions):
    return [random.random() < 0.5 for _ in completions]
"""
"""A reward for samples that are all alike."""


@dataclass(frozen=True)
class Rehearsal:
    name: str
    runs: tuple[tuple[str, ...], ...]
    """Overrides of each run, one after the other in the same folder."""
    check: Callable[[list[Rows], dict[str, Any]], None] = lambda found, record: None
    """Raises AssertionError; is given the rows of each run, and the run.json of the last one."""
    environment: dict[str, str] = field(default_factory=dict)
    served: bool = False
    """By a server of vLLM that is started first, on a card of its own, by the command of docs/examples/slurm."""
    torch: str = ""
    """The version that has it; empty: all."""


def same_tokens(found: list[Rows], record: dict[str, Any]) -> None:
    one, other = found
    assert [row["tokens_generated"] for row in one] == [row["tokens_generated"] for row in other]
    pairs = [(a["policy/entropy"], b["policy/entropy"]) for a, b in zip(one[1:], other[1:], strict=True)]
    assert all(abs(a - b) < 1e-5 for a, b in pairs), pairs


def never_again(found: list[Rows], record: dict[str, Any]) -> None:
    again = [row["perf/recompiles"] for row in found[0][1:]]
    assert len(again) == 3, again
    assert not any(again), f"compiled again after the first step: {again}"


def as_tested(found: list[Rows], record: dict[str, Any]) -> None:
    """The engine has the runner that the CPU tests, and the card is in the record."""
    engine = record["engine"]
    assert (engine["runner"], engine["async_scheduling"]) == ("V1", False), engine
    assert record["hardware"]["gpus"] == ["fake H100 (no GPU)"], record["hardware"]["gpus"]


PATHS = (
    Rehearsal("float32, the CPU's tokens", ((*SUMS, "budget.steps=2", *CARD, "runs_dir=card"),
        (*SUMS, "budget.steps=2", "trainer.accelerator=cpu", "runs_dir=cpu")), same_tokens),
    Rehearsal("sizes by auto, bfloat16, resumed", ((*SUMS, "budget.steps=1", "trainer=gpu"),
        (*SUMS, "budget.steps=2", "trainer=gpu", "resume=true"))),
    Rehearsal("adapters", ((*SUMS, "budget.steps=1", *CARD, "policy.lora={rank: 8, alpha: 8}"),)),
    Rehearsal("fsdp, bfloat16", ((*SUMS, "budget.steps=1", *SHARD),)),
    Rehearsal("fsdp, float32", ((*SUMS, "budget.steps=1", *SHARD, "trainer.sharding.dtype=null"),)),
    Rehearsal("compiled", ((*SUMS, "budget.steps=3", "trainer=gpu", "trainer.compile=true",
        "trainer.micro_batch_tokens=128", "trainer.activation_checkpointing=none"),), never_again),
    Rehearsal("vllm in the trainer's process", ((*SUMS, "budget.steps=1", *VLLM, EAGER),), as_tested),
    Rehearsal("vllm with CUDA graphs", ((*SUMS, "budget.steps=2", *VLLM),)),
    Rehearsal("vllm with CUDA graphs, asleep while it trains", (
        (*SUMS, "budget.steps=2", *VLLM, "rollout.vllm.sleep=true"),)),
    Rehearsal("vllm under fsdp", ((*SUMS, "budget.steps=1", *VLLM, EAGER, *SHARD),)),
    Rehearsal("vllm in a process of its own", (
        (*SUMS, "budget.steps=1", *VLLM, EAGER, "rollout.vllm.placement=auto"),)),
    Rehearsal("a server of vLLM", ((*SUMS, "budget.steps=2", *VLLM, EAGER, SERVER, "reward.function=coin.flips"),),
        served=True, torch="2.13"),  # with vLLM 0.32, as servers must be
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    name: str
    file: str
    old: str
    new: str
    path: str
    """That must fail."""
    says: str
    """Part of what it prints: a path that fails by something else has not found the fault."""
    torch: str = ""
    """The version with which it does; empty: any."""


FAULTS = (
    Fault("cuDNN's attention may be chosen (H100: misaligned address)", "kernels.py",
        "enable_cudnn_sdp(False)", "enable_cudnn_sdp(True)", "fsdp, bfloat16", "cuDNN"),
    Fault("adapters are drawn on the device of the context (H100: a generator of another device)", "policy/lora.py",
        'torch.zeros(parameter.shape, device="cpu")', "torch.zeros(parameter.shape)", "adapters",
        "device type for generator"),
    Fault("vLLM computes in float32 (H100: illegal memory access)", "config/run.py",
        'return "bfloat16" if vllm and on_gpu', 'return "bfloat16" if vllm and not on_gpu',
        "vllm in the trainer's process", "started in float32"),
    Fault("vLLM chooses its newer runner (H200, TRL: a package is missing)", "engines/vllm_engine/engine.py",
        '    "VLLM_USE_V2_MODEL_RUNNER": "0",\n', "", "vllm in the trainer's process",
        "flashinfer"),
    Fault("a product without storage is simulated (H200: trainer=gpu, torch 2.11)", "policy/head.py",
        "if has_storage(weight):", "if True:", "sizes by auto, bfloat16, resumed", "unsupported operand", "2.11"),
    Fault("Lightning frees what CUDA graphs point to (H200: illegal memory access)", "engines/vllm_engine/engine.py",
        "self._while_open.enter_context(workspaces_kept())", "pass", "vllm with CUDA graphs", "illegal memory access"),
    Fault("the same with an engine that sleeps (H200: log-probs apart)", "engines/vllm_engine/engine.py",
        "self._while_open.enter_context(workspaces_kept())", "pass", "vllm with CUDA graphs, asleep while it trains",
        "illegal memory access"),
    Fault("layers are compiled again for each number of buckets (torch 2.11)", "policy/attention.py",
        "@dataclass(eq=False)\nclass Layout:", "@dataclass(frozen=True)\nclass Layout:", "compiled",
        "compiled again", "2.11"),
)  # fmt: skip


def prepared_environment() -> dict[str, str]:
    """The environment of every process of a rehearsal: the card's libraries and kernels, and caches of its own."""
    fake = Path(sys.prefix) / "fake_cuda"
    return {
        "LD_LIBRARY_PATH": str(fake), "PYTHONPATH": f"{HERE / 'site'}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(fake / "vllm_cache"), "TORCHINDUCTOR_CACHE_DIR": str(fake / "inductor_cache"),
        "TRITON_CACHE_DIR": str(fake / "triton_cache"), "VLLM_CONFIGURE_LOGGING": "0", "VLLM_NO_USAGE_STATS": "1",
        "WANDB_MODE": "disabled", "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # vLLM finds none under this name: what is loaded is the library to which the names are links.
        "VLLM_CUDART_SO_PATH": str(fake / "libcudart.so.13"),
    }  # fmt: skip


def rehearsed(path: Rehearsal, tree: Path) -> tuple[str, str]:
    """Why the path fails, empty where it does not, and all that it printed."""
    with tempfile.TemporaryDirectory(prefix="rehearsal_") as name:
        folder, found = Path(name), []
        said, server = folder / "said.txt", folder / "server.txt"
        for overrides in path.runs:
            with serving(tree, folder, server, overrides) if path.served else nullcontext(()) as where:
                code = forked(tree, folder, said, (*overrides, *where), path.environment | KEY)
            if code:
                printed = "".join(f.read_text(encoding="utf-8", errors="replace") for f in (server, said) if f.exists())
                if os.environ.get("REHEARSAL_SHOW"):
                    print(printed[:20_000])
                return f"exit code {code}: {last_words(said)}", printed
            newest = max(folder.rglob("metrics.jsonl"), key=lambda file: file.stat().st_mtime)
            lines = newest.read_text(encoding="utf-8").splitlines()
            found.append([json.loads(line) for line in lines])
            record = json.loads((newest.parent / "run.json").read_text(encoding="utf-8"))
        try:
            path.check(found, record)
        except AssertionError as error:
            return f"check: {error}", str(error)
    return "", ""


@contextmanager
def serving(tree: Path, folder: Path, said: Path, overrides: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The overrides by which a training finds the server that was started for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    paths = os.pathsep.join([str(HERE / "site"), str(tree), str(folder)])
    (folder / "coin.py").write_text(COIN, encoding="utf-8")
    own = {
        "PYTHONPATH": paths, "FAKE_CUDA_CARD": str(folder / "card_of_the_server"), "HOST": "127.0.0.1", "PORT": port,
        "VLLM_CONFIGURE_LOGGING": "1", "VLLM_LOGGING_LEVEL": "ERROR",
        # New memory holds zeros, and a server ends at what no kernel has written if that is no token.
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }  # fmt: skip
    where = (f"rollout.vllm.server.folder={folder / 'servers'}", "rollout.vllm.server.wait_s=300")
    program = Path(sys.executable).with_name("vllm")
    script = [sys.executable, tree / "docs/examples/slurm/serve_command.py", program, "1", *overrides, *where]
    with said.open("ab") as output:
        made = {"env": os.environ | own | KEY, "stderr": output, "cwd": folder}
        command = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=False, **made).stdout
        # As much of the card as the other paths take.
        words = ["bash", "-c", f"{command.strip()} --kv-cache-memory-bytes {10**8}"]
        server = subprocess.Popen(words, stdout=output, start_new_session=True, **made)
        try:
            yield (*where, f"rollout.vllm.server.urls=['http://127.0.0.1:{port}']")
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def last_words(file: Path) -> str:
    lines = [line for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def forked(tree: Path, folder: Path, said: Path, overrides: tuple[str, ...], environment: dict[str, str]) -> int:
    """The exit code of a training."""
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        code = 1
        try:
            with said.open("ab", buffering=0) as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            os.chdir(folder)
            os.environ |= environment | {"FAKE_CUDA_CARD": str(folder / "fake_card")}
            sys.path[:1] = [str(tree), str(folder)]
            sys.argv = ["dapo_lit.train", *overrides]
            code = trained()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def trained() -> int:
    import torch

    compiled = torch.compile
    if "rollout=vllm" in sys.argv and SERVER not in sys.argv:
        check_arguments()

    def traced(*args: Any, **named: Any) -> Any:
        return compiled(*args, **({"backend": "aot_eager"} | named))

    # vLLM's own compilation names its backend.
    torch.compile = traced
    try:
        # As Python does it: a run of several processes starts its module again.
        runpy.run_module("dapo_lit.train", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0) if isinstance(end.code, (int, type(None))) else 1
    return 0


def check_arguments() -> None:
    """Refuses a dtype that has ended in an illegal access on a card, from a cause that is not known, and that a card
    without kernels cannot show."""
    from vllm import LLM

    start = LLM.__init__

    def started(self: Any, **options: Any) -> None:
        assert options["dtype"] == "bfloat16", f"started in {options['dtype']}"
        start(self, **options)

    LLM.__init__ = started


def with_fault(fault: Fault, folder: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "base_policies"))
        else:
            shutil.copy2(source, folder / name)
    (folder / "dapo_lit/base_policies").symlink_to(ROOT / "dapo_lit/base_policies")
    file = folder / "dapo_lit" / fault.file
    text = file.read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, f"the text to replace is {text.count(fault.old)} times in {fault.file}"
    file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")


def main() -> None:
    if os.environ.get("LD_LIBRARY_PATH") != prepared_environment()["LD_LIBRARY_PATH"]:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | prepared_environment())
    words = [word.lower() for word in sys.argv[1:]]
    chosen = [of for of in (*PATHS, *FAULTS) if not words or any(word in of.name.lower() for word in words)]
    chosen = [of for of in chosen if version("torch").startswith(of.torch)]
    for library in LIBRARIES:  # not vLLM, whose import starts CUDA: that cannot be forked
        import_module(library)
    print(f"torch {version('torch')}, transformers {version('transformers')}, vLLM {version('vllm')}", flush=True)
    paths, wrong, began = {path.name: path for path in PATHS}, 0, time.monotonic()
    for of in chosen:
        since, spent = time.monotonic(), sum(os.times()[:4])
        if isinstance(of, Fault):
            with tempfile.TemporaryDirectory(prefix="fault_") as name:
                with_fault(of, Path(name))
                reason, printed = rehearsed(paths[of.path], Path(name))
            found = of.says in printed
            result = "fails" if found else "OTHERWISE" if reason else "SURVIVES"
            wrong += not found
        else:
            reason, _ = rehearsed(of, ROOT)
            result = "FAILS" if reason else "works"
            wrong += bool(reason)
        seconds, processor = time.monotonic() - since, sum(os.times()[:4]) - spent
        print(f"{result:<8} {of.name:<84} {seconds:4.0f} s, {processor:3.0f} s processor  {reason}", flush=True)
    print(f"{time.monotonic() - began:.0f} s, {sum(os.times()[:4]):.0f} s of processor time")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
