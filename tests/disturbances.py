"""Disturbances of a run of seconds: kills and signals, full disks, taken-over and moved folders.

Every case disturbs a run, resumes it and compares it with the uninterrupted one bit for bit: rows (without times),
rollouts, evaluations, weights and the optimiser's state. Moments are drawn in processor time, so that a busy machine
disturbs at the same moments as an idle one.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from command_line import Command, run_cli

from dapo_lit.run_files import HEARTBEAT, METRICS, RECORD, SILENT_S, read_metrics
from dapo_lit.runs.checkpoint_files import complete

RUN = Path("runs") / "four_sums" / "dapo" / "seed_0"
TIMING = ("wall_s", "time/", "perf/", "memory/")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 1200
"""Seconds for a command to end; many, because the machine may be busy."""
MOST_DISTURBANCES = 6
"""Of one run; it is then left to finish."""


@dataclass(frozen=True)
class Case:
    """One disturbance and what became of the run."""

    sweep: str
    what: str
    """The signal, the size of the disk, or the file and its damage."""
    at: str
    """When: processor seconds since the start, and rows of metrics.jsonl by then."""
    outcome: str


def processor_s(pid: int) -> float | None:
    """Processor time of a process so far; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def num_rows(folder: Path) -> int:
    file = folder / RUN / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def difference(folder: Path, whole: Path) -> str | None:
    """In what a finished run differs from the uninterrupted one; None: in nothing but times."""
    run, other = folder / RUN, whole / RUN
    if json.loads((run / "DONE.json").read_text())["status"] != "finished":
        return "DONE.json"
    rows = [read_metrics(path).table.filter(regex=f"^(?!{'|'.join(TIMING)})") for path in (run, other)]
    if not rows[0].equals(rows[1]):
        return "metrics.jsonl"
    for pattern in ("rollouts/*.parquet", "eval/*/*.parquet"):
        found = [{file.relative_to(path) for file in path.glob(pattern)} for path in (run, other)]
        names = [sorted(map(str, files)) for files in found]
        if names[0] != names[1] or not names[0]:
            return pattern
        for name in names[0]:
            if not pd.read_parquet(run / name).equals(pd.read_parquet(other / name)):
                return name
    states = [torch.load(complete(path / "checkpoints")[-1], weights_only=False) for path in (run, other)]
    for part in ("state_dict", "optimizer_states"):
        if not _same(states[0][part], states[1][part]):
            return part
    return None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def disturb(
    folder: Path, arguments: tuple[str, ...], number: int, moments: Iterator[float]
) -> tuple[list[tuple[str, bytes]], bool]:
    """Starts a run again and again, and sends it a signal at each of the next moments, until one comes too late.

    Returns:
        (when, rows then) of every signal that came in time, and whether the run has finished by itself.
    """
    sent: list[tuple[str, bytes]] = []
    rows = folder / RUN / "metrics.jsonl"
    while len(sent) < MOST_DISTURBANCES:
        moment = next(moments, None)
        if moment is None:
            return sent, False
        process = Command(*arguments, "resume=auto", cwd=folder)
        while (spent := processor_s(process.pid)) is not None and spent < moment and process.poll() is None:
            time.sleep(0.005)
        if process.poll() is None:
            process.send_signal(number)
        ended = process.wait(timeout=PATIENCE_S)
        if ended.returncode == 0 and "stopped on request" not in ended.stdout:
            return sent, True
        if number in (signal.SIGTERM, signal.SIGHUP) and "Traceback" in ended.stderr:
            raise AssertionError(ended.stderr)
        sent.append((f"{moment:.2f} s, {num_rows(folder)} rows", rows.read_bytes() if rows.is_file() else b""))
    return sent, False


def signal_sweep(
    folder: Path, whole: Path, arguments: tuple[str, ...], numbers: list[int], seed: int, run_s: float
) -> list[Case]:
    """Runs that get the signals one after another, resume and finish.

    run_s: processor time of the uninterrupted run; the moments of signals are drawn up to it.
    """
    draw = random.Random(seed)
    cases: list[Case] = []
    waiting, early = list(numbers), 0
    while waiting:
        number, chain = waiting[0], folder / f"run_{len(cases)}"
        chain.mkdir()
        same = next((i for i, other in enumerate(waiting) if other != number), len(waiting))
        moments = (draw.uniform(0, run_s) for _ in range(same))
        sent, finished = disturb(chain, arguments, number, moments)
        early = early + 1 if finished and not sent else 0
        assert early < 20, f"{signal.Signals(number).name} reaches no run before its end, or is ignored"
        waiting = waiting[len(sent) :]
        if not finished:
            ended = run_cli(*arguments, "resume=auto", cwd=chain, timeout=PATIENCE_S)
            assert ended.returncode == 0, ended.stderr
        differs = difference(chain, whole)
        rows = (chain / RUN / "metrics.jsonl").read_bytes()
        for at, before in sent:
            lost = not rows.startswith(before[: before.rfind(b"\n") + 1])
            outcome = "rows are lost" if lost else f"differs in {differs}" if differs else "resumed, equal"
            cases.append(
                Case("kill" if number == signal.SIGKILL else "signal", signal.Signals(number).name, at, outcome)
            )
        shutil.rmtree(chain)
    return cases


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[], None]]:
    """Mounts a file system of `size` bytes at a folder, which takes root; yields what makes it large."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)

    def enlarge() -> None:
        subprocess.run(["mount", "-o", f"remount,size={2**30}", str(folder)], check=True)

    try:
        yield enlarge
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a process that is ending may look into it


def disk_case(folder: Path, whole: Path, arguments: tuple[str, ...], size: int) -> list[Case]:
    """A run on a disk that becomes full, and then is given room."""
    folder.mkdir()
    with small_disk(folder, size) as enlarge:
        ended = run_cli(*arguments, cwd=folder, timeout=PATIENCE_S)
        at = f"{num_rows(folder)} rows"
        message = ended.stderr.strip().splitlines()
        if ended.returncode == 0:
            outcome = "did not become full"
        elif "Traceback" in ended.stderr:
            outcome = f"traceback: {message[-1]}"
        elif str(RUN) not in ended.stderr:
            outcome = f"names no file: {message[-1:]}"
        else:
            enlarge()
            again = run_cli(*arguments, "resume=auto", cwd=folder, timeout=PATIENCE_S)
            differs = difference(folder, whole) if again.returncode == 0 else again.stderr.strip().splitlines()[-1]
            outcome = f"one line names the file; resumed, {f'differs in {differs}' if differs else 'equal'}"
    return [Case("disk", f"{size / 2**20:.2f} MiB", at, outcome)]


def uninterrupted(folder: Path, arguments: tuple[str, ...]) -> tuple[str, float]:
    """Runs to the end; returns what it printed and its processor time."""
    folder.mkdir(exist_ok=True)
    process, spent = Command(*arguments, cwd=folder), 0.0
    while process.poll() is None:
        spent = processor_s(process.pid) or spent
        time.sleep(0.005)
    ended = process.wait(PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, spent


HANDICAPS: dict[str, dict[str, Any]] = {
    "standard output full": {"stdout": "/dev/full"},
    "standard output a closed pipe": {"stdout": "closed pipe"},
    "8 file descriptors": {"NOFILE": 8},
    "24 file descriptors": {"NOFILE": 24},
    "files of 400 kB at most": {"FSIZE": 400_000},  # less than a checkpoint
    "files of 20 kB at most": {"FSIZE": 20_000},
}


def handicap_case(folder: Path, whole: Path, arguments: tuple[str, ...], what: str) -> list[Case]:
    """A run under a handicap; if that ends it, it is resumed without."""
    folder.mkdir()
    ended = run_cli(*arguments, cwd=folder, timeout=PATIENCE_S, **HANDICAPS[what])
    return [Case("handicap", what, f"{num_rows(folder)} rows", after_end(ended, folder, whole, arguments))]


def after_end(ended: subprocess.CompletedProcess[str], folder: Path, whole: Path, arguments: tuple[str, ...]) -> str:
    """The outcome of a run that was not to end, or only by name; it is then resumed."""
    if ended.returncode == 0:
        differs = difference(folder, whole)
        return f"differs in {differs}" if differs else "went on, equal"
    if ended.returncode != 2 or "Traceback" in ended.stderr:
        return f"exit code {ended.returncode}: {ended.stderr.strip()[-300:]}"
    again = run_cli(*arguments, "resume=auto", cwd=folder, timeout=PATIENCE_S)
    if again.returncode:
        return f"cannot be resumed: {again.stderr.strip()[-300:]}"
    differs = difference(folder, whole)
    return f"ended by name, resumed, differs in {differs}" if differs else "ended by name; resumed, equal"


def reaches(process: Command, folder: Path, rows: int) -> None:
    """Waits until a run has written so many rows."""
    while num_rows(folder) < rows:
        assert process.poll() is None, process.output("stderr")
        time.sleep(0.005)


def folder_case(folder: Path, whole: Path, arguments: tuple[str, ...], what: str) -> list[Case]:
    """The folder of a run is moved or removed while it trains."""
    folder.mkdir()
    process = Command(*arguments, cwd=folder)
    reaches(process, folder, 3)
    (folder / RUN).rename(folder / "elsewhere")
    if what == "removed":
        shutil.rmtree(folder / "elsewhere")
    ended = process.wait(PATIENCE_S)
    if ended.returncode != 2 or "moved or removed" not in ended.stderr:
        outcome = f"exit code {ended.returncode}: {ended.stderr.strip()[-300:]}"
    elif left := sorted(str(file.relative_to(folder)) for file in (folder / RUN).rglob("*") if file.is_file()):
        outcome = f"left behind: {left}"
    else:
        if what == "moved":
            (folder / RUN).parent.mkdir(parents=True, exist_ok=True)
            (folder / "elsewhere").rename(folder / RUN)
        outcome = after_end(ended, folder, whole, arguments)
    return [Case("folder", what, "3 rows", outcome)]


def starters_case(folder: Path, whole: Path, arguments: tuple[str, ...], what: str) -> list[Case]:
    """Two processes start one run, at once or one later, on one host or two."""
    folder.mkdir()
    hosts = [{}, {}] if what.endswith("one host") else [{"host": host} for host in ("first", "second")]
    first = Command(*arguments, "resume=auto", cwd=folder, **hosts[0])
    if "later" in what:
        reaches(first, folder, 3)
    ends = [process.wait(PATIENCE_S) for process in (first, Command(*arguments, "resume=auto", cwd=folder, **hosts[1]))]
    outcome = "trained by both" if read_metrics(folder / RUN).faults else judged(ends, folder, whole)
    return [Case("starters", what, "", outcome)]


def judged(ends: list[subprocess.CompletedProcess[str]], folder: Path, whole: Path) -> str:
    """The outcome where one process is to finish a run, and another to leave it by name."""
    if bad := [end for end in ends if end.returncode not in (0, 2) or "Traceback" in end.stderr]:
        return f"exit code {bad[0].returncode}: {bad[0].stderr.strip()[-300:]}"
    left = [end for end in ends if "skipping it" in end.stdout or "took it over" in end.stderr]
    if len(left) != 1 or any(end.returncode for end in ends if end not in left):
        return f"{len(left)} left it: {[(end.returncode, end.stderr[-200:]) for end in ends]}"
    differs = difference(folder, whole)
    return f"differs in {differs}" if differs else "one left it by name, equal"


def takeover_case(folder: Path, whole: Path, arguments: tuple[str, ...], what: str) -> list[Case]:
    """A host stops, another takes its run over, and the first goes on while the other trains or has finished."""
    folder.mkdir()
    first = Command(*arguments, cwd=folder, host="first")
    reaches(first, folder, 3)
    first.send_signal(signal.SIGSTOP)
    for name in (HEARTBEAT, METRICS, RECORD):
        os.utime(folder / RUN / name, (time.time() - 2 * SILENT_S,) * 2)
    second = Command(*arguments, "resume=auto", cwd=folder, host="second")
    if what == "goes on at once":
        while "second" not in (folder / RUN / HEARTBEAT).read_text():
            time.sleep(0.005)
    else:
        second.wait(PATIENCE_S)
    first.send_signal(signal.SIGCONT)
    return [Case("takeover", what, "3 rows", judged([first.wait(PATIENCE_S), second.wait(PATIENCE_S)], folder, whole))]
