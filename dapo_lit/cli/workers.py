"""Runs the cells of a study, several at a time, each in a process of its own.

The processes are forked, so that the imports are paid once. What they print goes into logs; the parent prints one line
a cell.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

from ablations.ending import Stopped, end_with, stopped_by_signals, stops_in_one_line
from ablations.screen import StatusLine
from dapo_lit.config import Config
from dapo_lit.runs.preemption import NOTICES, SIGNALS, end_after, stop_signals

FORK = multiprocessing.get_context("fork")
PASSED_ON = (*SIGNALS, signal.SIGINT)
"""Signals that the cells get from the parent. They share its process group, so that what a terminal or a scheduler does
to the group reaches them too: SIGINT comes twice then, and counts once."""
FAILED_SILENTLY = 1
STOPPED = {*(Stopped(number).exit_code for number in PASSED_ON), *(-number for number in NOTICES)}
"""Exit codes of a cell that a signal ended."""


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
    return max(1, min(cores() // config.trainer.threads, cells))


def cores() -> int:
    """Processors that this process may use; macOS knows only how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def next_cell(waiting: Sequence[Cell], running: Collection[Cell]) -> Cell:
    """The first cell of a seed that no running cell has, because cells of one seed share a base policy to make; else
    the first.

    >>> a, b, c = Cell("a", 0), Cell("b", 0), Cell("a", 1)
    >>> str(next_cell([b, c], [a])), str(next_cell([b], [a]))
    ('a/seed_1', 'b/seed_0')
    """
    seeds = {cell.seed for cell in running}
    return next((cell for cell in waiting if cell.seed not in seeds), waiting[0])


def run_cells(
    cells: Sequence[Cell],
    run: Callable[[Cell], int],
    workers: int,
    logs: Path,
    share_done: Callable[[Cell], float] = lambda cell: 0.0,
) -> int:
    """Runs every cell and returns the largest of their exit codes.

    run: runs one cell and returns its exit code.
    logs: the folder for what the cells print; with one worker everything is printed here.
    share_done: how much of a cell is done, from 0 to 1. What is done before the start took none of the time so far.
    """
    if workers == 1:
        return max([run(cell) for cell in cells], default=0)
    logs.mkdir(parents=True, exist_ok=True)
    print(f"{workers} cells at a time; their output is in {logs}/worker_*.log", flush=True)
    stops, handled = list[int](), stop_signals(PASSED_ON)
    # The handlers only record the signal: blocking it in this thread does not stop other threads from receiving it.
    before = {number: signal.signal(number, lambda number, frame: stops.append(number)) for number in handled}
    try:
        outputs = [logs / f"worker_{n}.log" for n in reversed(range(workers))]
        code = _run_forked(cells, run, outputs, stops, share_done)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stops:
        stopped = Stopped(signal.SIGINT if signal.SIGINT in stops else stops[0])
        print(
            f"stopped by {stopped}; the cells kept their checkpoints, and the same command continues", file=sys.stderr
        )
        # 0 unless a person stopped it, as of a single run that was asked to stop and has saved itself.
        raise SystemExit(stopped.exit_code) if stopped.number == signal.SIGINT else end_after(stopped.number)
    return code


def _run_forked(
    cells: Sequence[Cell],
    run: Callable[[Cell], int],
    logs: list[Path],
    stops: Sequence[int],
    share_done: Callable[[Cell], float],
) -> int:
    """Runs as many cells at once as there are logs, each in a process, with a line for every cell that ends.

    Passes the signals in `stops` on to the processes, and starts no more.
    """
    waiting, running, codes = list(cells), dict[Any, tuple[Cell, Path, float]](), list[int]()
    to_do = {cell: 1 - share_done(cell) for cell in cells}
    all_of_it, worked = sum(to_do.values()), 0.0
    start, passed_on, line = time.monotonic(), 0, StatusLine("study")
    try:
        while running or (waiting and not stops):
            while waiting and logs and not stops:
                waiting.remove(cell := next_cell(waiting, [cell for cell, *_ in running.values()]))
                process = FORK.Process(target=_work, args=(cell, run, log := logs.pop(), os.getpid()))
                running[process] = cell, log, time.monotonic()
                # In the process too, until it has left this handler.
                signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
                process.start()
                signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
            for number in stops[passed_on:]:
                if number == signal.SIGINT and not passed_on:
                    print(
                        "stopping when each running cell has finished its step; press Ctrl-C again to stop at once",
                        flush=True,
                    )
                passed_on += 1
                for process in running:
                    os.kill(process.pid, number)
            connection.wait([process.sentinel for process in running], timeout=0.2)
            if line.is_due:
                part = sum(to_do[cell] - (1 - share_done(cell)) for cell, *_ in running.values())
                words = f"{len(codes)} of {len(cells)} cells done, {len(running)} running"
                line.update(worked + part, all_of_it, words)
            for process in [process for process in running if not process.is_alive()]:
                cell, log, began = running.pop(process)
                logs.append(log)
                codes.append(process.exitcode if process.exitcode in (0, 1, 2) else FAILED_SILENTLY)
                worked += to_do[cell]
                left = time_left(time.monotonic() - start, worked, all_of_it)
                stopped = process.exitcode in STOPPED or (stops and not process.exitcode)
                end = "stopped" if stopped else f"FAILED (see {log})" if process.exitcode else "done"
                rest = f", about {left / 60:.0f} min left" if left and left >= 30 else ""
                text = f"[{len(codes)}/{len(cells)}] {cell}: {end} in {time.monotonic() - began:.0f} s{rest}"
                print(text, flush=True)
    finally:
        line.erase()
        for process in running:
            process.join()
    return max(codes, default=0)


def time_left(seconds: float, worked: float, to_do: float) -> float | None:
    """Seconds left at the rate so far, of work that this command had to do, in cells; None before any of it is done."""
    return seconds / worked * (to_do - worked) if worked else None


def _work(cell: Cell, run: Callable[[Cell], int], log: Path, parent: int) -> None:
    _be_child(parent)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    with stops_in_one_line():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        sys.exit(run(cell))


def _be_child(parent: int) -> None:
    """In a forked process: signals do what they do to a command, and it ends with the parent."""
    for number in stop_signals(PASSED_ON):
        # Not the parent's; a run installs its own.
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    end_with(parent)


def in_child(run: Callable[[], int]) -> int:
    """The exit code of `run` in a forked process, because threads of torch that it starts would not survive a fork.

    The process ends before this one does, whatever ends this one; it saves what it can.
    """

    def child(parent: int) -> None:
        _be_child(parent)
        with stopped_by_signals():
            try:
                code = run()
            except KeyboardInterrupt as stop:  # the parent says so
                code = stop.exit_code if isinstance(stop, Stopped) else Stopped(signal.SIGINT).exit_code
        sys.exit(code)

    process = FORK.Process(target=child, args=(os.getpid(),))
    process.start()
    try:
        process.join()
    finally:
        process.terminate()  # if something interrupts the parent
        process.join()
    return process.exitcode if process.exitcode is not None and process.exitcode >= 0 else FAILED_SILENTLY
