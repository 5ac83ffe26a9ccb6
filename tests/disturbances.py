"""Disturbances of a run of seconds: kills and signals, disks that become full, damaged files.

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

from dapo_lit.manifest import read_manifest, sum_of, write_manifest
from dapo_lit.run_files import read_metrics
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


def difference(folder: Path, whole: Path, ignored: Path | None = None) -> str | None:
    """In what a finished run differs from the uninterrupted one; None: in nothing but times.

    ignored: a file of the run that is not compared.
    """
    run, other = folder / RUN, whole / RUN
    if json.loads((run / "DONE.json").read_text())["status"] != "finished":
        return "DONE.json"
    rows = [read_metrics(path).table.filter(regex=f"^(?!{'|'.join(TIMING)})") for path in (run, other)]
    if ignored != RUN / "metrics.jsonl" and not rows[0].equals(rows[1]):
        return "metrics.jsonl"
    for pattern in ("rollouts/*.parquet", "eval/*/*.parquet"):
        names = [sorted(str(file.relative_to(path)) for file in path.glob(pattern)) for path in (run, other)]
        if names[0] != names[1] or not names[0]:
            return pattern
        for name in names[0]:
            if ignored != RUN / name and not pd.read_parquet(run / name).equals(pd.read_parquet(other / name)):
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
        if number == signal.SIGTERM and "Traceback" in ended.stderr:
            raise AssertionError(ended.stderr)
        sent.append((f"{moment:.2f} s, {num_rows(folder)} rows", rows.read_bytes() if rows.is_file() else b""))
    return sent, False


def resealed(run: Path) -> None:
    """Makes the manifest of a run fit its files, as someone does who alters them on purpose."""
    manifest = read_manifest(run)
    assert manifest is not None
    present = [name for name in manifest["files"] if (run / name).is_file()]
    write_manifest(run, manifest | {"files": {name: sum_of(run / name) for name in present}})


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


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "a byte flipped": lambda content: (
        content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 0x55]) + content[len(content) // 2 + 1 :]
    ),
}


def damage_case(
    folder: Path, killed: Path, whole: Path, arguments: tuple[str, ...], file: Path, damage: str
) -> list[Case]:
    """Resumes a copy of a killed run in which one file is damaged, and asks for its status.

    The file itself is not compared: rows, rollouts and evaluations of earlier steps are never written again.
    """
    shutil.copytree(killed, folder)
    (folder / file).write_bytes(DAMAGES[damage]((folder / file).read_bytes()))
    status = run_cli(str(RUN.parents[1]), cwd=folder, module="dapo_lit.status", timeout=PATIENCE_S)
    resumed = run_cli(*arguments, "resume=true", cwd=folder, timeout=PATIENCE_S)
    if tracebacks := [name for name, done in (("status", status), ("train", resumed)) if "Traceback" in done.stderr]:
        outcome = f"traceback of {' and '.join(tracebacks)}"
    elif resumed.returncode == 0:
        differs = difference(folder, whole, ignored=file)
        named = file.name in resumed.stdout + resumed.stderr
        equal = f"{differs} differs" if differs else "all else equal"
        outcome = f"{'named in a warning' if named else 'resumed'}, {equal}"
    else:
        outcome = "refused, the file is named" if file.name in resumed.stderr else f"refused: {resumed.stderr.strip()}"
    return [Case("damage", f"{file.relative_to(RUN)} {damage}", "", outcome)]


def damaged_files(killed: Path) -> list[Path]:
    """Files of a killed run: one of each kind, and both checkpoints."""
    run = killed / RUN
    chosen = [run / name for name in ("config.yaml", "run.json", "overrides.txt", "metrics.jsonl")]
    chosen += complete(run / "checkpoints")
    chosen += [min(run.glob(pattern)) for pattern in ("rollouts/*.parquet", "eval/*/*.parquet")]
    return [file.relative_to(killed) for file in chosen]


def killed_run(folder: Path, arguments: tuple[str, ...]) -> Path:
    """A run that was killed after its seventh step."""
    folder.mkdir()
    process = Command(*arguments, cwd=folder)
    while process.poll() is None and num_rows(folder) < 8:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return folder


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
