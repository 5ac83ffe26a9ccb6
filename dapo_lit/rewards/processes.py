"""A pool of killable worker processes, driven by its owner: no thread, no signal handler in the training process."""

import contextlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dapo_lit.rewards.channel import Buffers, decode_reply, encode_request
from dapo_lit.rewards.fork_server import EXITED
from dapo_lit.rewards.worker import BROKEN, DONE, FAILED, READY, Setup, Task

PREFETCH = 16
"""Tasks a worker holds, so that it never waits for the owner to look."""
GRACE_S = 1.0
"""A worker that outlives a deadline by this much, as seen by the owner, is killed from outside."""
START_S = 120.0
"""The time a worker may take to import its functions."""
MAX_DEATHS = 3
"""Fork servers, and workers not yet ready, that may die without one outcome between them before the run ends."""

_COMMAND = "import sys; sys.path[:] = {path!r}; from dapo_lit.rewards.fork_server import main; main({fd}, {parent})"


@dataclass(frozen=True)
class Outcome:
    """What became of a task."""

    number: int
    result: Any = None
    timed_out: bool = False
    error: str | None = None
    traceback: str = ""
    service_s: float = 0.0
    """Time in the worker, without waiting."""


class _Worker:
    def __init__(self, connection: socket.socket, fork_server: "subprocess.Popen[bytes]"):
        self.connection = connection
        self.fork_server = fork_server
        self.buffers = Buffers(connection)
        self.tasks: deque[Task] = deque()
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.overdue = False
        """Killed by the owner."""
        self.since = time.monotonic()
        """When the first of its tasks began, as far as the owner knows."""


class ProcessPool:
    """Runs tasks in `count` processes; each task ends by its deadline, in a result, a timeout or an error.

    Not for several threads. `submit` and `poll(0)` never wait.
    """

    def __init__(self, setup: Setup, count: int):
        self._owner = os.getpid()
        self._workers: list[_Worker] = []
        self._queue: deque[Task] = deque()
        self._outcomes: list[Outcome] = []
        self._deaths = 0
        self._selector = selectors.DefaultSelector()
        self._setup = setup
        self._start_fork_server()
        for _ in range(count):
            self._start_worker()

    def submit(self, task: Task) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError("a verifier belongs to the process that made it; make one in each process")
        self._queue.append(task)
        self._dispatch()

    @property
    def busy(self) -> bool:
        """Whether a task is without its outcome."""
        return bool(self._queue or self._outcomes or any(worker.tasks for worker in self._workers))

    @property
    def hungry(self) -> bool:
        """Whether a worker has nothing to do."""
        return not self._queue and any(not worker.tasks for worker in self._workers)

    def poll(self, wait_s: float) -> list[Outcome]:
        """The outcomes since the last call; waits up to `wait_s` for one if there is none."""
        if not self._outcomes:
            for key, _ in self._selector.select(max(0.0, wait_s) if self.busy else 0.0):
                self._serve(key.data)
        self._kill_overdue()
        self._dispatch()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def close(self) -> None:
        """Ends every process and waits for it."""
        for worker in self._workers:
            self._selector.unregister(worker.connection)
        self._selector.close()
        self._finalizer()

    def pids(self) -> Iterator[int]:
        """The process ids of the fork server and of the workers that are ready."""
        yield self._process.pid
        yield from (worker.pid for worker in self._workers if worker.pid is not None)

    def _start_fork_server(self) -> None:
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = _COMMAND.format(
            path=[path or os.getcwd() for path in sys.path], fd=other.fileno(), parent=self._owner
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", command], pass_fds=[other.fileno()], env=environment, stdin=subprocess.DEVNULL
        )
        other.close()
        self._control.send(pickle.dumps(self._setup))
        self._finalizer = weakref.finalize(self, _shut_down, self._process, self._control, self._workers)

    def _restart_fork_server(self) -> None:
        """After something killed it, the kernel for lack of memory for instance."""
        self._finalizer.detach()
        self._control.close()
        self._count_death(self._process.wait())
        self._start_fork_server()

    def _count_death(self, exit_code: int | None) -> None:
        self._deaths += 1
        if self._deaths >= MAX_DEATHS:
            raise RuntimeError(f"the verifier's processes died {self._deaths} times in a row (exit code {exit_code})")

    def _start_worker(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
            except OSError:  # the fork server is gone
                self._restart_fork_server()
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
        ours.setblocking(False)
        worker = _Worker(ours, self._process)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _dispatch(self) -> None:
        """Gives tasks to the workers with the fewest."""
        while self._queue:
            worker = min(self._workers, key=lambda worker: (worker.pid is None, len(worker.tasks)))
            if len(worker.tasks) >= PREFETCH:
                break
            task = self._queue.popleft()
            if not worker.tasks:
                worker.since = time.monotonic()
            worker.tasks.append(task)
            worker.buffers.send(encode_request(task))
        for worker in self._workers:
            if worker.buffers.must_send:
                worker.buffers.flush()
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.buffers.must_send else 0)
            if self._selector.get_key(worker.connection).events != wanted:
                self._selector.modify(worker.connection, wanted, worker)

    def _serve(self, worker: _Worker) -> None:
        """Takes what a worker sent; replaces it if it is dead."""
        worker.buffers.flush()
        bodies, is_open = worker.buffers.receive()
        for body in bodies:
            kind, number, result, *service = decode_reply(body)
            if kind == READY:
                worker.pid, worker.since = result, time.monotonic()
            elif kind == BROKEN:
                raise RuntimeError(f"a reward function cannot be loaded: {result}")
            elif kind == EXITED:
                worker.exit_code = result
            elif kind in (DONE, FAILED) and worker.tasks and worker.tasks[0].number == number:
                worker.tasks.popleft()
                worker.since = time.monotonic()
                self._deaths = 0
                error, trace = (None, "") if kind == DONE else result
                found = result if kind == DONE else None
                self._outcomes.append(Outcome(number, found, error=error, traceback=trace, service_s=sum(service)))
        if not is_open:
            self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        """Replaces a dead worker: its first task is what killed it and gets that outcome, the others start again.

        A worker that died with its fork server, which therefore could not report how, had nothing to do with it.
        """
        self._selector.unregister(worker.connection)
        worker.connection.close()
        self._workers.remove(worker)
        if worker.exit_code is None and _ends_within(worker.fork_server, 1.0):
            if worker.fork_server is self._process:
                self._restart_fork_server()
        elif worker.pid is None:
            self._count_death(worker.exit_code)
        elif worker.tasks and worker.exit_code != 0:
            culprit = worker.tasks.popleft()
            late = worker.overdue or worker.exit_code in (-signal.SIGALRM, -signal.SIGXCPU)
            error = None if late else f"the worker died (exit code {worker.exit_code})"
            self._outcomes.append(Outcome(culprit.number, timed_out=late, error=error, service_s=culprit.deadline_s))
        self._queue.extendleft(reversed(worker.tasks))
        self._start_worker()

    def _kill_overdue(self) -> None:
        """Kills workers whose own alarm did not: a reward function may have cancelled it."""
        for worker in list(self._workers):
            if self._is_overdue(worker):
                self._serve(worker)  # its reply may lie unread
            if worker not in self._workers or worker.overdue or not self._is_overdue(worker):
                continue
            if worker.pid is None:
                raise RuntimeError(f"a reward function takes more than {START_S:.0f} s to load")
            worker.overdue = True
            _kill(worker.pid)

    def _is_overdue(self, worker: _Worker) -> bool:
        if not worker.tasks:
            return False
        allowed = START_S if worker.pid is None else worker.tasks[0].deadline_s + GRACE_S
        return time.monotonic() - worker.since > allowed


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended by itself in the meantime
        os.kill(pid, signal.SIGKILL)


def _shut_down(process: "subprocess.Popen[bytes]", control: socket.socket, workers: list[_Worker]) -> None:
    control.close()
    for worker in workers:
        worker.connection.close()
    if not _ends_within(process, 5.0):
        process.kill()
        process.wait()


def _ends_within(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return True
    return False
