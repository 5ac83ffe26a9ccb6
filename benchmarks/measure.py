"""Shared code of the benchmarks: alternating runs, child processes and their memory, the machine, records and tables.

Memory is resident memory as counted by Linux. The part of a page between `<!-- begin NAME -->` and `<!-- end NAME -->`
is the table of a benchmark, which --page rewrites.
"""

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any

import torch

CLOCK = "BENCH_CLOCK"
"""Set to `processor` in the environment of a benchmark and its children by --clock processor."""


def set_clock() -> None:
    """With --clock processor, all timers of this process, the trainer's included, measure processor time.

    With one thread this is the time of the same work on an idle machine, even if this machine is busy.
    """
    if os.environ.get(CLOCK) == "processor":
        time.perf_counter = time.process_time


set_clock()


def arguments(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a run of a few seconds, to check that it works")
    parser.add_argument("--threads", type=int, default=defaults.get("threads", 1))
    parser.add_argument("--repeats", type=int, default=defaults.get("repeats", 5))
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall", action=_SetClock)
    parser.add_argument("--out", type=Path, help="folder for NAME.json and NAME.md")
    return parser


class _SetClock(argparse.Action):
    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        os.environ[CLOCK] = values
        set_clock()
        namespace.clock = values


def in_turns(cases: Mapping[str, Callable[[], Any]], warmup: int, repeats: int) -> dict[str, list[Any]]:
    """The results of each case, `repeats` times after `warmup`; the order of the cases alternates."""
    found: dict[str, list[Any]] = {name: [] for name in cases}
    for repeat in range(warmup + repeats):
        for name in list(cases)[:: 1 if repeat % 2 else -1]:
            result = cases[name]()
            if repeat >= warmup:
                found[name].append(result)
    return found


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


# Memory


def resident(pid: int | str = "self", field: str = "VmRSS") -> int:
    """Resident bytes; VmHWM is the peak since `reset_peak`. 0 for a process that has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def reset_peak(pid: int | str = "self") -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf-8")


def added_memory(call: Callable[[], object]) -> int:
    """Peak bytes of `call` beyond those resident before it."""
    before = resident()
    reset_peak()
    call()
    return resident(field="VmHWM") - before


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, task.read_text(encoding="utf-8").split())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


class Child:
    """A child process: `main(connection, *given)` receives messages and sends results.

    Each answer comes with the peak resident memory of the process and its descendants: exact for the process itself,
    polled every 50 ms for the descendants.
    """

    def __init__(self, main: Callable[..., None], *given: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        # A child that was forked has copies of these ends, and would wait for a message from itself.
        register_after_fork(self, lambda child: child.connection.close())
        self.process = context.Process(target=_serve, args=(main, other, *given), daemon=False)
        self.process.start()
        other.close()

    def ask(self, message: Any = None) -> dict[str, Any]:
        """Raises RuntimeError with the child's error if it failed."""
        pid = self.process.pid
        assert pid is not None
        done, below = threading.Event(), [0]

        def watch() -> None:
            while not done.wait(0.05):
                below[0] = max(below[0], sum(resident(p) for p in tree(pid)[1:]))

        reset_peak(pid)
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            self.connection.send(message)
            answer: dict[str, Any] = self.connection.recv()
        except EOFError:
            raise RuntimeError("the process ended without an answer") from None
        finally:
            done.set()
            watcher.join()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer | {"peak_bytes": resident(pid, "VmHWM") + below[0]}

    def close(self) -> None:
        self.connection.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()


def _serve(main: Callable[..., None], connection: Connection, *given: Any) -> None:
    try:
        main(connection, *given)
    except EOFError:  # the parent has closed the connection
        pass
    except BaseException as error:
        connection.send({"error": f"{type(error).__name__}: {error}"})
        raise


# The record


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except FileNotFoundError:
        pass
    return platform.processor() or platform.machine()


def machine(threads: int) -> dict[str, Any]:
    """The hardware and its current load."""
    found: dict[str, Any] = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "load_1min": round(os.getloadavg()[0], 2),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def versions(*names: str) -> dict[str, str]:
    """Versions of python, torch and those of the packages that are installed."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def installed(*names: str) -> bool:
    """Whether one of these packages (pip's names) is installed."""
    return len(versions(*names)) > len(versions())


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; all columns but the first are right-aligned."""
    lines = [f"| {' | '.join(header)} |", "|---|" + "---:|" * (len(header) - 1)]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)


def record(
    name: str, args: argparse.Namespace, began: dict[str, Any], names: Sequence[str], results: Any, tables: str
) -> str:
    """The tables with the line of their conditions; writes NAME.json and NAME.md to --out.

    May be called after every measurement: each file is replaced as a whole, so a benchmark that is killed leaves the
    record of what it had measured.

    Args:
        began: `machine()` before the first measurement.
        names: packages whose versions matter.
    """
    found = versions(*names)
    ended = round(os.getloadavg()[0], 2)
    where = f"{began['processor']}, {began['cores']} cores, {began['capability']}, {began['threads']} thread(s)"
    where = f"{began['gpu']}; {where}" if "gpu" in began else where
    load = f"load {began['load_1min']} at the start, {ended} at the end"
    timed = "processor time of one thread (the machine was shared)" if args.clock == "processor" else "wall time"
    text = f"{tables}\n\n{where}; {timed}; {load}; {', '.join(f'{n} {v}' for n, v in found.items())}."
    if args.out:
        settings = {key: value for key, value in vars(args).items() if key != "out"}
        content = {
            "command": [f"benchmarks/{name}.py", *without_paths(sys.argv[1:])],
            "settings": settings,
            "machine": began | {"load_1min_end": ended},
            "versions": found,
            "results": results,
        }
        args.out.mkdir(parents=True, exist_ok=True)
        replace_text(args.out / f"{name}.json", json.dumps(content, indent=1) + "\n")
        replace_text(args.out / f"{name}.md", text + "\n")
    return text


def replace_text(path: Path, text: str) -> None:
    """Writes a file under another name first: a reader sees the old text or the new."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def publish(
    name: str, args: argparse.Namespace, began: dict[str, Any], names: Sequence[str], results: Any, tables: str
) -> None:
    """Like `record`, and prints the tables."""
    print(record(name, args, began, names, results, tables))
    if args.out:
        print(f"results {args.out / name}.json, {args.out / name}.md")


PATHS = ("--out", "--before")


def without_paths(options: Sequence[str]) -> list[str]:
    """The command line without the options that name a folder or file of this machine."""
    kept, skips = [], False
    for option in options:
        if not skips and option not in PATHS:
            kept.append(option)
        skips = option in PATHS
    return kept
