"""Runs the cells of a study, several at a time: each worker process takes whole blocks of a seed over all arms.

Workers are forked, so that the imports are paid once. What they print goes into a log each; the parent prints one line
a cell.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_lit.config import Config
from dapo_lit.runs.preemption import SIGNALS, stop_signals

FORK = multiprocessing.get_context("fork")
FAILED_SILENTLY = 1


@dataclass(frozen=True)
class Cell:
    arm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm}/seed_{self.seed}"


def workers_for(config: Config, cells: int) -> int:
    """The number of cells to run at once: `study.workers`, else one a core, or one where a GPU is shared."""
    if config.study and config.study.workers:
        return min(config.study.workers, cells)
    if config.trainer.accelerator != "cpu" or config.rollout.engine != "torch":
        return 1
    return max(1, min(len(os.sched_getaffinity(0)) // config.trainer.threads, cells))


def next_cell(cells: Sequence[Cell], taken: Sequence[int], seed: int | None) -> int | None:
    """The place of the cell to run next: of this worker's seed, else of a seed that nobody started, else any.

    >>> cells = [Cell(arm, seed) for seed in (0, 1) for arm in ("a", "b")]
    >>> next_cell(cells, [1, 0, 0, 0], 0), next_cell(cells, [1, 0, 0, 0], None), next_cell(cells, [1, 0, 1, 1], 1)
    (1, 2, 1)
    """
    free = [place for place, is_taken in enumerate(taken) if not is_taken]
    started = {cell.seed for cell, is_taken in zip(cells, taken, strict=True) if is_taken}
    own = [place for place in free if cells[place].seed == seed]
    fresh = [place for place in free if cells[place].seed not in started]
    return next(iter([*own, *fresh, *free]), None)


def run_cells(cells: Sequence[Cell], run: Callable[[Cell], int], workers: int, logs: Path) -> int:
    """Runs every cell and returns the largest of their exit codes.

    run: runs one cell and returns its exit code.
    logs: the folder for what the workers print; with one worker everything is printed here.
    """
    if workers == 1:
        return max([run(cell) for cell in cells], default=0)
    logs.mkdir(parents=True, exist_ok=True)
    taken, results = FORK.Array("b", len(cells)), FORK.SimpleQueue()
    started = [
        FORK.Process(target=_work, args=(cells, run, taken, results, logs / f"worker_{n}.log")) for n in range(workers)
    ]
    print(f"{workers} cells at a time; what they print is in {logs}/worker_*.log", flush=True)
    stops = list[int]()
    # The handlers only record the signal. They may run before all workers exist: blocking a signal in this thread does
    # not stop other threads from receiving it.
    before = {number: signal.signal(number, lambda number, frame: stops.append(number)) for number in stop_signals()}
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # in the workers too, until they have left this handler
    for process in started:
        process.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        codes = _follow(cells, started, results, stops)
    except KeyboardInterrupt:  # the terminal has sent it to the workers too
        print("stopped by Ctrl-C; the same command continues", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        for process in started:
            process.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    if stops:
        raise SystemExit(0)  # asked to stop; the cells saved themselves
    lost = [cell for place, cell in enumerate(cells) if place not in codes]
    for cell in lost:
        print(f"{cell}: its process ended without a result; see {logs}/worker_*.log", file=sys.stderr)
    return max([*codes.values(), *([FAILED_SILENTLY] if lost else [])], default=0)


def in_child(run: Callable[[], int]) -> int:
    """The exit code of `run` in a forked process, because threads of torch that it starts would not survive a fork."""

    def child() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches both processes, and the parent says so
        sys.exit(run())

    process = FORK.Process(target=child)
    process.start()
    try:
        process.join()
    finally:
        process.terminate()  # if something interrupts the parent alone
    return process.exitcode if process.exitcode is not None and process.exitcode >= 0 else FAILED_SILENTLY


def _work(cells: Sequence[Cell], run: Callable[[Cell], int], taken: Any, results: Any, log: Path) -> None:
    """A worker: takes cells until none is left."""
    for number in stop_signals():
        signal.signal(number, signal.SIG_DFL)  # not the parent's; a run installs its own
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    seed = None
    while True:
        with taken.get_lock():
            place = next_cell(cells, list(taken), seed)
            if place is None:
                return
            taken[place] = 1
        seed, start = cells[place].seed, time.monotonic()
        code = run(cells[place])
        sys.stdout.flush()
        results.put((place, code, time.monotonic() - start, log))


def _follow(cells: Sequence[Cell], processes: Sequence[Any], results: Any, stops: Sequence[int]) -> dict[int, int]:
    """Prints a line for every cell that ends, with the time left, until all workers have ended; place -> exit code.

    Passes the signals in `stops` on to the workers.
    """
    codes: dict[int, int] = {}
    start, passed_on = time.monotonic(), 0
    while True:
        for number in stops[passed_on:]:
            passed_on += 1
            for process in processes:
                if process.is_alive():
                    os.kill(process.pid, number)
        alive = any(process.is_alive() for process in processes)  # before the queue is read to its end
        while not results.empty():
            place, code, seconds, log = results.get()
            codes[place] = code
            left = (time.monotonic() - start) / len(codes) * (len(cells) - len(codes))
            end = "done" if code == 0 else f"FAILED (see {log})"
            rest = f", about {left / 60:.0f} min left" if left >= 30 else ""
            print(f"[{len(codes)}/{len(cells)}] {cells[place]}: {end} in {seconds:.0f} s{rest}", flush=True)
        if not alive:
            return codes
        time.sleep(0.2)
