"""The owner's side of the supervised workers: no thread and no signal handler in the training process."""

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from ablations.errors import UserError
from dapo_lit.rewards.channel import framed, receive
from dapo_lit.rewards.reply import Awaited
from dapo_lit.rewards.work import Comparison, Outcome, Reading, Rendering, Rewarding, Setup, Stepping, Task, Work

SILENT_S = 30.0
"""A supervisor that is not heard for so long, though it reports every second, is stopped or stuck: it is replaced."""
MAX_DEATHS = 3
"""Times that a supervisor may die on the same task, or without one outcome in between, before the run ends."""

_COMMAND = (
    "import sys; sys.path[:] = {path!r}; from dapo_lit.rewards.supervisor_process import main; "
    "main({fd}, {owner}, {count})"
)


class WorkersLostError(UserError, RuntimeError):
    """The processes cannot be started, or something kills them again and again."""


class Supervisor:
    """Runs tasks in `count` processes; each task ends in a result, a timeout or an error.

    Not for several threads. `submit` and `poll(0)` never wait for a task.
    """

    def __init__(self, setup: Setup, count: int):
        self._setup, self._count, self._owner = setup, count, os.getpid()
        self._tasks: dict[int, Task] = {}
        self._workers: list[int] = []
        self._deaths = 0
        self._start()

    def submit(self, task: Task) -> None:
        # A forked process shares the socket: both would read the other's verdicts.
        if os.getpid() != self._owner:
            raise RuntimeError("a verifier belongs to the process that made it; make one in each process")
        self._tasks[task.number] = task
        self._send(task)

    def drop(self, numbers: Sequence[int]) -> None:
        """Forgets tasks: those that no worker has begun are not begun, and no outcome of any of them is given."""
        found = frozenset(number for number in numbers if self._tasks.pop(number, None) is not None)
        if found:
            self._write(found)

    @property
    def hungry(self) -> bool:
        """True if a worker has nothing to do."""
        return len(self._tasks) < self._count

    def poll(self, wait_s: float) -> list[Outcome]:
        """The outcomes since the last call; waits up to `wait_s` for one if a task is under way."""
        outcomes: list[Outcome] = []
        until = time.monotonic() + wait_s
        while not outcomes:
            left = max(0.0, until - time.monotonic()) if self._tasks else 0.0
            # Polled and not read by a thread: the training process gets neither thread nor signal handler for this.
            while select.select([self._connection], [], [], 0.0 if outcomes else left)[0]:
                message = self._receive()
                if message is None:
                    self._restart()
                    break
                # JSON from there and pickles to there: what has handled hostile text is never unpickled (reply.py).
                outcomes += self._taken(*json.loads(message))
            if self._tasks and time.monotonic() - self._heard > SILENT_S:
                self._restart()
            if time.monotonic() >= until:
                break
        return outcomes

    def pids(self) -> Iterator[int]:
        """The process ids of the supervisor and of the workers."""
        yield self._process.pid
        yield from self._workers

    def close(self) -> None:
        """Ends every process and waits for it."""
        self._finalizer()

    def _start(self) -> None:
        self._connection, other = socket.socketpair()
        self._connection.settimeout(SILENT_S)
        # An empty entry of sys.path is this process's working directory, which is another one there.
        path = [path or os.getcwd() for path in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND.format(path=path, fd=other.fileno(), owner=self._owner, count=self._count)],
            pass_fds=[other.fileno()],
            # One thread: a pool of threads per worker would take the processors from the trainer, and address space.
            env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
        )
        other.close()
        self._heard = time.monotonic() + SILENT_S  # it imports before it reports
        # Also when the verifier is just dropped, and at the end of the interpreter; __del__ is sure of neither.
        self._finalizer = weakref.finalize(self, _shut_down, self._process, self._connection, self._workers)
        self._write(self._setup)

    def _send(self, task: Task) -> None:
        work = pickle.dumps((task.number, task.work), pickle.HIGHEST_PROTOCOL)
        self._write((task.number, task.deadline_s, _awaited(task.work), work))

    def _write(self, message: object) -> None:
        with contextlib.suppress(OSError):  # it is dead: `poll` will see it
            self._connection.sendall(framed(pickle.dumps(message)))

    def _receive(self) -> bytes | None:
        with contextlib.suppress(OSError):
            return receive(self._connection)
        return None

    def _taken(self, kind: str, number: int, result: Any, seconds: float) -> list[Outcome]:
        self._heard = time.monotonic()
        match kind:
            case "workers":
                self._workers[:] = result
            case "broken":
                raise WorkersLostError(result)
            case "done" | "late" | "failed" if self._tasks.pop(number, None) is not None:
                self._deaths = 0
                if kind == "failed":
                    return [Outcome(number, error=result[0], traceback=result[1], service_s=seconds)]
                return [Outcome(number, result, timed_out=kind == "late", service_s=seconds)]
        return []

    def _restart(self) -> None:
        """After something killed or stopped the supervisor, the kernel for lack of memory for instance."""
        self._finalizer.detach()
        self._connection.close()
        code = _kill(self._process, self._workers)
        self._deaths += 1
        for task in self._tasks.values():
            # All of them: nobody knows which of them the supervisor died of.
            task.attempts += 1
        # A task that kills whatever has it would otherwise be sent again for ever.
        if max([self._deaths, *(task.attempts for task in self._tasks.values())]) >= MAX_DEATHS:
            raise WorkersLostError(f"the verifier's processes died {MAX_DEATHS} times in a row (exit code {code})")
        self._start()
        for task in self._tasks.values():
            self._send(task)


def _awaited(work: Work) -> Awaited:
    """The kind of reply that is believed."""
    match work:
        case Rewarding():
            return len(work.texts)
        case Rendering():
            return "texts", len(work.chats)
        case Reading():
            return "fault"
        case Stepping():
            return "observation"
        case Comparison():
            return "verdict"


def _kill(process: "subprocess.Popen[bytes]", workers: list[int]) -> int:
    """Kills the supervisor and the process groups of its workers, which may hold more than the workers."""
    process.kill()
    for pid in workers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    workers.clear()
    return process.wait()


def _shut_down(process: "subprocess.Popen[bytes]", connection: socket.socket, workers: list[int]) -> None:
    connection.close()  # the supervisor then ends its workers and itself
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
    _kill(process, workers)
