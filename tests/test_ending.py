"""Every command that starts another process, ended by each signal while that is at work: nothing of it lives on, a
training has its checkpoint, and one line says what was kept."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from command_line import SMALL, Command

from ablations.files.metrics_file import last_step
from dapo_lit.build.components import RunComponents
from dapo_lit.runs.checkpoint_files import complete
from dapo_lit.runs.preemption import STARTS

REWARD = """
import time

def score(problems, completions):
    time.sleep({seconds})
    return [problem.answer in text for problem, text in zip(problems, completions)]
"""
"""In worker processes, for as long as it takes to be ended there."""
PROGRAM = "import sys\nfrom dapo_lit import train\ntrain('four_sums', *sys.argv[1:])\n"
RUN = Path("runs/four_sums/dapo/seed_0")
STEPS = 4000
LONG = (
    *SMALL, f"budget.steps={STEPS}", "trainer.checkpoint_every=1000", "preflight=false",
    "reward.function=at_once.score",
)  # fmt: skip
FORKED = (
    "+study=fork", f"fork.run={RUN}", "fork.steps=[2]", "study.arm=dapo", "seed=0", "logger.progress=none",
    "reward.function=at_once.score",
)  # fmt: skip
STUDY = (
    "-m", "+study=placebo", "study.seeds=[0,1]", "study.underpowered=true", "study.workers=2", "evaluation.every=0",
)  # fmt: skip
SUMS = "{min_terms: 3, max_terms: 4, smallest: 1, largest: 9}"
BENCHMARK = (
    "benchmark=chain_sum_heldout", "benchmark.name=sums", "benchmark.extraction=number", f"benchmark.options={SUMS}",
    "benchmark.max_response_tokens=80", "benchmark.num_problems=12", "benchmark.samples=4000", f"ckpt={RUN}",
    "preflight=false",
)  # fmt: skip


class Case(NamedTuple):
    """A command and how it looks from outside."""

    arguments: tuple[str, ...]
    is_at_work: Callable[[Path, Command], bool]
    line: str
    """What it says when it is stopped, after the name of the signal."""
    module: str = "dapo_lit.train"
    saves_itself: bool = False
    """SIGTERM and SIGHUP have exit code 0: they ask a training to save itself, and it has."""
    asked: str = ""
    """What it says then, if that is something else."""


def steps(cwd: Path, pattern: str = "runs/**/metrics.jsonl") -> list[int]:
    return [last_step(file.parent) or 0 for file in cwd.glob(pattern)]


def children(command: Command) -> list[str]:
    file = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    return file.read_text().split() if file.exists() else []


CONTINUES = r"; the same command with resume=true continues from step_\d+\.ckpt \(run: \S+\)"
SAVED = r"stopped on request after step \d+; continue with resume=true \(run: \S+\)"
CASES = {
    "train": Case(LONG, lambda cwd, _: max(steps(cwd), default=0) > 2, CONTINUES, saves_itself=True, asked=SAVED),
    "ranks": Case(
        (*LONG, "trainer=fsdp", "trainer.devices=2", "trainer.accelerator=cpu", "trainer.sharding.dtype=null"),
        lambda cwd, _: max(steps(cwd), default=0) > 2,
        CONTINUES,
        saves_itself=True,
        asked=SAVED,
    ),
    "fork": Case(
        (*FORKED, "fork.horizon=3000"),
        lambda cwd, _: max(steps(cwd, "runs/fork/**/metrics.jsonl"), default=0) > 2,
        CONTINUES,
        saves_itself=True,
        asked=SAVED,
    ),
    "study": Case(
        (*LONG, *STUDY),
        lambda cwd, _: len([step for step in steps(cwd) if step > 1]) == 2,
        "; the cells kept their checkpoints, and the same command continues",
        saves_itself=True,
    ),
    "checks of a study": Case(
        (*LONG, *STUDY, "preflight=true", "reward.function=slow.score"),
        lambda cwd, command: "policy " in command.output("stdout") and bool(children(command)),
        "; nothing new was kept",
    ),
    "ablate": Case(
        ("clip_higher", "--model", "MODEL", "--data", "sums.csv", "--reward", "slow.score", "study.until=null",
         "study.seeds=[0,1]", "study.underpowered=true", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2",
         "task.max_prompt_tokens=8", "task.max_response_tokens=4", "preflight=false", "task.template=plain"),
        lambda cwd, _: max(steps(cwd, "runs/*_probe/**/metrics.jsonl"), default=0) > 0,
        r"; the probe's steps so far are in \S+, and the same command continues",
        module="dapo_lit.ablate",
    ),
    "evaluate": Case(
        BENCHMARK,
        lambda cwd, command: "sampling 4" in command.output("stdout") + command.output("stderr"),
        r"; [\d,]+ of [\d,]+ samples are in \S+, and the same command continues",
        module="dapo_lit.evaluate",
    ),
}  # fmt: skip
TYPED = "Ctrl-C typed"
"""The terminal sends it to the command and to everything that this has started."""
HOW = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGHUP": signal.SIGHUP, "SIGKILL": signal.SIGKILL}
ENDS = [*HOW, "closed terminal", TYPED]
ALL = "DAPO_LIT_MATRIX" in os.environ  # `make sweeps`
PAIRS = [(name, how) for name in CASES for how in ENDS if ALL or how == "SIGTERM" or name == "train"]
PROGRAMS = ENDS if ALL else ["SIGKILL"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A folder with rewards, problems and a run that was stopped after it had kept the state before its second step."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "at_once.py").write_text(REWARD.format(seconds=0))
    (folder / "slow.py").write_text(REWARD.format(seconds=1))
    (folder / "program.py").write_text(PROGRAM)
    (folder / "sums.csv").write_text(
        "problem,answer\n" + "".join(f"{a}+{b}=,{a + b}\n" for a in range(9) for b in range(9))
    )
    command = Command(*LONG, "replay.record=[2]", cwd=folder)
    wait_for(lambda: max(steps(folder), default=0) > 2, command)
    command.send_signal(signal.SIGTERM)
    assert command.wait().returncode == 0
    return folder


def wait_for(condition: Callable[[], bool], command: Command, within_s: float = 600) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert command.poll() is None, command.output("stdout") + command.output("stderr")
        assert time.monotonic() < deadline, command.output("stdout") + command.output("stderr")
        time.sleep(0.02)


@pytest.mark.parametrize(("name", "how"), PAIRS)
def test_a_command_that_is_ended_leaves_no_process_and_says_what_it_kept(name, how, begun, tmp_path, compose):
    case = CASES[name]
    for file in begun.glob("*.py"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "sums.csv").symlink_to(begun / "sums.csv")
    if f"{RUN}" in " ".join(case.arguments):
        (tmp_path / "runs" / "four_sums").mkdir(parents=True)
        (tmp_path / "runs" / "four_sums" / "dapo").symlink_to(begun / RUN.parent)
    policy = str(RunComponents(compose()).policy_folder)
    arguments = [argument.replace("MODEL", policy) for argument in case.arguments]
    ended = ended_by(how, lambda command: case.is_at_work(tmp_path, command), tmp_path, case.module, *arguments)
    assert "Traceback" not in ended.stderr
    if how == "SIGKILL":
        return
    number = signal.SIGINT if how == TYPED else HOW.get(how, signal.SIGHUP)
    gently = case.saves_itself and number != signal.SIGINT
    assert ended.returncode == (0 if gently else 128 + number), ended.stderr
    for run in {file.parent for file in tmp_path.glob("runs/**/metrics.jsonl")} if name != "fork" else ():
        if not run.is_relative_to(tmp_path / RUN.parent) or name in ("train", "ranks"):
            assert (last_step(run) or 0) < STEPS, run  # it did not go on to its end
            assert f"step_{last_step(run):06d}.ckpt" in [file.name for file in complete(run / "checkpoints")], run
    if how in HOW:
        said, by = ended.stdout + ended.stderr, "Ctrl-C" if number == signal.SIGINT else how
        line = case.asked if gently and case.asked else f"stopped by {by}{case.line}"
        assert len(re.findall(f"^{line}$", said, re.MULTILINE)) == 1, said
        assert len(re.findall("^stopped (?:by|on) ", said, re.MULTILINE)) == 1, said


SCONTROL = "#!/bin/sh\necho $* after $(ls -d runs/*/*/*/checkpoints/step_*.ckpt | wc -l) >> requeued\n"


@pytest.mark.parametrize(("name", "saved"), [("checks of a study", 0), ("study", 2)])
def test_slurms_notice_puts_the_job_back_into_the_queue_once_and_when_every_cell_is_saved(
    name, saved, begun, tmp_path, monkeypatch
):
    case = CASES[name]
    for file in begun.glob("*.py"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    command = Command(*case.arguments, cwd=tmp_path)
    wait_for(lambda: case.is_at_work(tmp_path, command), command)
    command.send_signal(signal.SIGUSR1)
    ended = command.wait()
    assert "Traceback" not in ended.stderr
    assert (tmp_path / "requeued").read_text() == f"requeue 7 after {saved}\n", ended.stderr
    assert ended.returncode == (0 if saved else 128 + signal.SIGUSR1)


@pytest.mark.parametrize(("restarts", "requeues"), [(0, True), (STARTS, False)])
def test_a_job_that_never_gets_to_its_first_step_does_not_go_round_for_ever(restarts, requeues):
    ended = python(
        "from dapo_lit.runs import preemption\npreemption.requeue = lambda: print('requeued')\n"
        "with stops_in_one_line(), preemption.requeued_after_notice():\n    os.kill(os.getpid(), signal.SIGUSR1)\n",
        SLURM_JOB_ID="7",
        SLURM_RESTART_COUNT=str(restarts),
    )
    said, line = ended.communicate(timeout=60)
    assert ("requeued\n" in said, "--time" in said) == (requeues, not requeues)
    assert (line, ended.returncode) == ("stopped by SIGUSR1; nothing new was kept\n", 128 + signal.SIGUSR1)


@pytest.mark.parametrize("how", PROGRAMS)
def test_a_program_or_notebook_that_is_ended_leaves_no_process_and_its_training_saves_itself(how, begun, tmp_path):
    for file in begun.glob("*.py"):
        (tmp_path / file.name).symlink_to(file)
    ended_by(how, lambda _: max(steps(tmp_path), default=0) > 2, tmp_path, "program", *LONG[1:])
    assert (last_step(tmp_path / RUN) or 0) < STEPS
    kept = [file.name for file in complete(tmp_path / RUN / "checkpoints")]
    assert f"step_{last_step(tmp_path / RUN):06d}.ckpt" in kept


def ended_by(
    how: str, is_at_work: Callable[[Command], bool], cwd: Path, module: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Starts a command, ends it while it is at work, and asks that nothing of it lives on."""
    master, slave = (0, 0) if how in HOW else pty.openpty()
    command = Command(*arguments, cwd=cwd, module=module, terminal=os.ttyname(slave) if slave else "")
    closing = threading.Event()
    reader = threading.Thread(target=copied, args=(master, command.folder / "stdout", closing))
    if slave:
        reader.start()
    try:
        wait_for(lambda: is_at_work(command), command)
        if how == TYPED:
            os.write(master, b"\x03")
            command.wait(300)
    finally:
        closing.set()
    if slave:
        reader.join()
        os.close(slave)
        os.close(master)
    if how in HOW:
        command.send_signal(HOW[how])
    ended = command.wait(300)
    assert command.leaves_nothing(within_s=55), f"{how}: processes of {module} live on"
    return ended


def copied(master: int, file: Path, closing: threading.Event) -> None:
    """Takes what a command writes to its terminal, which would be full otherwise."""
    with file.open("ab") as opened:
        while not closing.is_set():
            if select.select([master], [], [], 0.1)[0]:
                opened.write(os.read(master, 4096))
                opened.flush()


def python(code: str, **variables: str) -> subprocess.Popen[str]:
    head = (
        "import os, signal, subprocess, sys, time\nfrom ablations.ending import STARTER, keeping, stops_in_one_line\n"
    )
    environment = {**os.environ, **variables}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", head + code], text=True, env=environment, **pipes)


def test_a_command_ends_with_the_program_that_started_it_even_if_that_is_killed():
    child = (
        "import time\nfrom ablations.ending import keeping, stops_in_one_line\n"
        "with stops_in_one_line(), keeping(lambda: 'all of it'):\n    print('begun', flush=True)\n    time.sleep(60)\n"
    )
    program = python(
        f"subprocess.Popen([sys.executable, '-c', {child!r}], env={{**os.environ, STARTER: str(os.getpid())}})\n"
        "time.sleep(60)\n"
    )
    assert program.stdout is not None
    program.stdout.readline()
    program.kill()
    _, said = program.communicate(timeout=50)  # at the end of both, which have the pipe
    assert said == "stopped by SIGTERM; all of it\n"


def test_what_is_saved_after_a_signal_is_not_interrupted_by_the_next():
    ended = python(
        "with stops_in_one_line(), keeping(lambda: 'one file'):\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGHUP)\n"
        "    finally:\n        [os.kill(os.getpid(), number) for number in (1, 2, 15)]\n        print('saved')\n"
    )
    assert ended.communicate(timeout=60) == ("saved\n", "stopped by SIGHUP; one file\n")
    assert ended.returncode == 129


def test_a_signal_that_is_ignored_ends_nothing():
    ended = python(
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does\n"
        "with stops_in_one_line():\n    os.kill(os.getpid(), signal.SIGHUP)\n    print('goes on')\n"
    )
    assert ended.communicate(timeout=60) == ("goes on\n", "")
    assert ended.returncode == 0
