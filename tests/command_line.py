"""Running commands as a user does; in a module of its own, because `conftest` is the name of several files."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

SMALL = (
    "+experiment=four_sums", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2", "budget.steps=6",
    "evaluation.samples=2", "trainer.checkpoint_every=2", "logger.rollouts_every=3", "logger.progress=none",
)  # fmt: skip
"""A run of seconds: four questions, a random policy, two updates a step."""


COMMAND_SERVER = "TESTS_COMMAND_SERVER"
"""The variable with the address of the process from which commands are forked, in all workers."""
STARTED: list[subprocess.Popen[str]] = []
"""That process, where this one started it."""


def start_server() -> None:
    """Starts the process from which commands are forked: its imports cost more than most of the runs in these tests."""
    script = Path(__file__).with_name("command_server.py")
    os.environ[COMMAND_SERVER] = str(Path(tempfile.mkdtemp(prefix="commands_")) / "socket")
    started = subprocess.Popen(
        [sys.executable, script, os.environ[COMMAND_SERVER]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    STARTED.append(started)
    assert started.stdout is not None
    assert started.stdout.readline() == "listening\n"


def stop_server() -> None:
    """Ends it, so that its seconds are among those of the process that started it."""
    for started in STARTED:
        started.terminate()
        started.communicate()
        shutil.rmtree(Path(os.environ.pop(COMMAND_SERVER)).parent)
    STARTED.clear()


class Command:
    """A command in a process of its own, started without waiting for it."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        module: str = "dapo_lit.train",
        terminal: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.arguments = [module, *arguments]
        self._outputs = tempfile.TemporaryDirectory(prefix="command_", ignore_cleanup_errors=True)
        self.folder = Path(self._outputs.name)
        request = {
            "module": module,
            "arguments": arguments,
            "cwd": str(cwd),
            "env": {**os.environ, **(variables or {})},
            "terminal": terminal,
            **{name: str(self.folder / name) for name in ("stdout", "stderr", "exit_code", "all_ended")},
        }
        if COMMAND_SERVER not in os.environ:
            start_server()
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(os.environ[COMMAND_SERVER])
            asking.sendall(json.dumps(request).encode() + b"\n")
            with asking.makefile() as answer:
                self.pid = int(answer.readline())

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended, and its exit code is about to be written
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        """The exit code, negative for the signal that killed it; None while it runs."""
        file = self.folder / "exit_code"
        return int(file.read_text()) if file.is_file() else None

    def wait(self, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self.send_signal(9)
                raise subprocess.TimeoutExpired(self.arguments, timeout, self.output("stdout"), self.output("stderr"))
            time.sleep(0.01)
        return subprocess.CompletedProcess(self.arguments, code, self.output("stdout"), self.output("stderr"))

    def leaves_nothing(self, within_s: float) -> bool:
        """True if every process that it started has ended, at most so long after the command itself."""
        deadline = time.monotonic() + within_s
        while not (self.folder / "all_ended").exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def output(self, name: str) -> str:
        file = self.folder / name
        return file.read_text() if file.is_file() else ""


def run_cli(
    *arguments: str, cwd: Path, module: str = "dapo_lit.train", timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user would, in a folder of its own."""
    return Command(*arguments, cwd=cwd, module=module).wait(timeout)


def run_ranks(count: int, *arguments: str, cwd: Path, timeout: float = 240) -> None:
    """Trains in this number of processes that find each other, as torchrun starts them; each must have exit code 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    started = []
    for rank in range(count):
        own = place | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if count > 1 else {}
        started.append(Command(*arguments, cwd=cwd, variables=own))
    for done in [process.wait(timeout) for process in started]:
        assert done.returncode == 0, done.stdout + done.stderr


def run_python(
    *arguments: str, cwd: Path, module: str = "dapo_lit.train", timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """The same from a fresh interpreter."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)
