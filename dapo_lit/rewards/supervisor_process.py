"""The process that forks the workers, gives each its next task, and kills what is late with all it has started.

`supervisor.py` starts it as a fresh interpreter, not through `multiprocessing`: that would import the training script,
and with it torch, into every worker. It has the workers' imports done, so that a killed worker is replaced in
milliseconds; it has one thread and never computes, so that forking from it is safe and deadlines are kept while the
training process is busy. It ends, with all workers, when its socket closes or its parent is gone.

What workers print goes to standard error, up to MOST_PRINTED bytes: a function that prints without an end fills no log.

Each worker leads a session of its own. When a worker ends, for whatever reason, its process group is killed, and then
every process that it leaves behind: the supervisor is the subreaper of them all. A task whose worker was killed from
outside, as the kernel does for want of memory, is tried once more.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablations.ending import SIGNALS as STOP
from ablations.ending import end_with
from dapo_lit.rewards.channel import framed, read, receive
from dapo_lit.rewards.reply import Awaited, read_reply
from dapo_lit.rewards.work import Setup
from dapo_lit.rewards.worker import OUT_OF_MEMORY, run

HEARTBEAT_S = 1.0
GRACE_S = 1.0
"""The time in which a process that has closed its socket ends, if it is ending."""
START_S = 120.0
"""The time a worker may take to import its functions."""
MAX_FAILED_STARTS = 3
"""Workers that may die before they are ready, one after the other."""
LONGEST = 20.0
"""No task takes more than this many times its deadline, however long it waits for a processor."""
MOST_PRINTED = 100_000
"""Bytes of what workers print that are shown."""
_PR_SET_CHILD_SUBREAPER = 36


def main(control_fd: int, owner: int, count: int) -> None:
    # A terminal or a scheduler sends them to all; the run saves itself first, and closes the socket.
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=control_fd)
    setup: Setup = pickle.loads(receive(control) or b"")
    # Grandchildren whose parent dies become children here, where they can be found and killed.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with _ending_with(control):
        if setup.symbolic:
            import math_answers.full  # noqa: F401
            from math_answers.symbolic import refuse_evaluation

            refuse_evaluation()
        if setup.models:
            sys.modules["torch"] = None  # type: ignore[assignment]
            os.environ["TRANSFORMERS_VERBOSITY"] = "critical"  # it would say that torch is not there
            import dapo_lit.rewards.model_files  # noqa: F401
    # Before the forks: frozen objects are not touched by a collection, so their pages stay shared with the workers.
    gc.collect()
    gc.freeze()
    asyncio.run(_Supervision(setup, owner).run(control, count))


@contextlib.contextmanager
def _ending_with(control: socket.socket) -> Iterator[None]:
    """Ends this process if its socket closes meanwhile. Imports take seconds, in which it would not hear of that."""
    finished, finish = os.pipe()

    def watch() -> None:
        ends = select.poll()
        ends.register(control, 0)  # its hang-up is always reported
        ends.register(finished, 0)
        if any(end == control.fileno() for end, _ in ends.poll()):
            os._exit(0)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        os.close(finish)
        watching.join()  # what forks has one thread
        os.close(finished)


@dataclass(frozen=True)
class _Task:
    number: int
    deadline_s: float
    awaited: Awaited
    work: bytes
    retried: bool = False
    """A worker was killed while it had the task."""


class _Worker:
    """A forked worker and the supervisor's end of its socket."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.pid, self.reader, self.writer = pid, reader, writer
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Its exit code."""

    @property
    def closed(self) -> bool:
        """It has ended, or is ending: its socket has no other end."""
        # The last is a write that came before the end was seen; the reader gets its exception and no end of file.
        return self.exited.done() or self.reader.at_eof() or self.reader.exception() is not None


class _Supervision:
    def __init__(self, setup: Setup, owner: int):
        self.setup, self.owner = setup, owner
        self.tasks: asyncio.Queue[_Task] = asyncio.Queue()
        self.dropped: set[int] = set()
        """Numbers of tasks that are not to be begun."""
        self.workers: dict[int, _Worker] = {}
        self.control: asyncio.StreamWriter
        self.printed, self.prints = os.pipe()
        """The ends of the pipe that workers print into."""
        self.left_to_print = MOST_PRINTED

    @property
    def _loaded(self) -> str:
        return "the environment" if self.setup.environment else "a reward function"

    async def run(self, control: socket.socket, count: int) -> None:
        """Serves until the owner is gone, or until a worker cannot be started."""
        # In the loop and not as a handler of Python's, which could interrupt any line.
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        os.set_blocking(self.printed, False)
        asyncio.get_running_loop().add_reader(self.printed, self._show)
        reader, self.control = await asyncio.open_connection(sock=control)
        loops = [self._take_tasks(reader), self._beat(), *(self._serve() for _ in range(count))]
        running = [asyncio.ensure_future(loop) for loop in loops]
        try:
            ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for loop in ended:
                loop.result()  # raises what it raised
            self.control.close()
            with contextlib.suppress(ConnectionError):
                await self.control.wait_closed()
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
            for pid in self.workers:
                _kill(pid)
            with contextlib.suppress(ChildProcessError):
                # What a worker leaves behind becomes a child when the worker is dead.
                while True:
                    _kill_children()
                    os.waitpid(-1, 0)
            while self._show():
                pass

    async def _take_tasks(self, reader: asyncio.StreamReader) -> None:
        while (body := await read(reader)) is not None:
            message = pickle.loads(body)
            if isinstance(message, frozenset):
                self.dropped |= message
            else:
                self.tasks.put_nowait(_Task(*message))

    async def _beat(self) -> None:
        # An orphan has another parent: the trainer was killed, and nobody reads verdicts any more.
        while os.getppid() == self.owner:
            self._report("alive", 0)
            await asyncio.sleep(HEARTBEAT_S)

    def _show(self) -> bool:
        """Takes a piece of what was printed, and shows it if it may; False: there is none.

        It is taken in any case: a worker that waits for room in the pipe would be late.
        """
        try:
            piece = os.read(self.printed, 1 << 16)
        except BlockingIOError:
            return False
        shown = piece[: self.left_to_print]
        if self.left_to_print and len(piece) >= self.left_to_print:
            shown += b"\nwarning: more is printed by the reward function or the environment, and not shown\n"
        self.left_to_print = max(0, self.left_to_print - len(piece))
        # Pieces of a size that a pipe which has room takes at once: deadlines are kept here.
        for start in range(0, len(shown), select.PIPE_BUF):
            with contextlib.suppress(OSError):  # nobody reads it any more
                if select.select([], [2], [], 0.0)[1]:
                    os.write(2, shown[start : start + select.PIPE_BUF])
        return bool(piece)

    def _report(self, kind: str, number: int, result: object = None, seconds: float = 0.0) -> None:
        self.control.write(framed(json.dumps([kind, number, result, seconds]).encode("ascii")))

    async def _serve(self) -> None:
        """Keeps one worker, and one after the other gives it tasks. Returns if it cannot be started."""
        failed = 0
        while failed < MAX_FAILED_STARTS:
            worker = await self._fork()
            # Imports have a deadline of their own, so that a task's deadline is about the task.
            loaded = await self._reply(worker, START_S)
            if loaded == b"":
                failed = 0
                while not worker.closed:
                    task: asyncio.Future[Any] = asyncio.ensure_future(self.tasks.get())
                    await asyncio.wait({task, worker.exited}, return_when=asyncio.FIRST_COMPLETED)
                    if worker.exited.done():  # while it had nothing to do
                        task.cancel()
                        if task.done() and not task.cancelled():
                            self.tasks.put_nowait(task.result())
                    elif task.result().number not in self.dropped and not await self._finish(worker, task.result()):
                        break
            elif loaded is not None:
                self._report("broken", 0, f"{self._loaded} cannot be loaded: {loaded.decode()}")
                return
            elif not worker.closed:
                self._report("broken", 0, f"{self._loaded} takes more than {START_S:.0f} s to load")
                return
            else:
                failed += 1
            await self._end(worker)
        self._report("broken", 0, f"{failed} workers died before their first task (exit code {worker.exited.result()})")

    async def _finish(self, worker: _Worker, task: _Task) -> bool:
        """Reports what becomes of a task; returns whether the worker lives on.

        A task gets a second worker if the first was killed by somebody else. Whoever submitted it decides whether to
        try again after anything else.
        """
        started = time.monotonic()
        worker.writer.write(framed(task.work))
        message = await self._reply(worker, task.deadline_s)
        if message is not None:
            return await self._pass_on(worker, task, message, started)
        # A closed socket is a worker that ended, not one that is slow.
        late = not worker.closed
        if not late:  # its socket closes a moment before its end is known
            await asyncio.wait([worker.exited], timeout=GRACE_S)
        # A negative code is a signal from outside: the kernel for want of memory, most often.
        killed = worker.exited.done() and worker.exited.result() < 0
        code = await self._end(worker)
        seconds = time.monotonic() - started
        if late:
            self._report("late", task.number, None, seconds)
        elif killed and not task.retried:
            self.tasks.put_nowait(replace(task, retried=True))
        else:
            died = "out of memory" if code == OUT_OF_MEMORY else f"the worker died (exit code {code})"
            if killed:
                died = f"two workers were killed by signal {-code} while they had it; is there enough memory?"
            self._report("failed", task.number, [died, ""], seconds)
        return False

    async def _pass_on(self, worker: _Worker, task: _Task, message: bytes, started: float) -> bool:
        """Reports a worker's reply, if it is one to this task; a worker that sends anything else is ended."""
        seconds = time.monotonic() - started
        try:
            kind, number, result, in_worker = read_reply(message, task.number, task.awaited)
        except ValueError as error:
            await self._end(worker)
            self._report("failed", task.number, [f"{error}; the function changed what its process sends", ""], seconds)
            return False
        self._report(kind, number, result, min(in_worker, seconds))
        return True

    async def _reply(self, worker: _Worker, deadline_s: float) -> bytes | None:
        """The worker's next message; None: it is dead or late.

        Time in which the worker was ready to run but had no processor does not count: on a loaded machine an answer
        takes longer, but is no later.
        """
        # Reading goes on while the clock is looked at: a reply that arrives in between must not be lost.
        reading: asyncio.Future[Any] = asyncio.ensure_future(read(worker.reader))
        started, queued = time.monotonic(), _queued_s(worker.pid)
        left = deadline_s
        while left > 0 and not (reading.done() or worker.exited.done()):
            await asyncio.wait([reading, worker.exited], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            # Waiting for a processor is the machine's fault, within a limit that ends a worker which never gets one.
            spared = min(_queued_s(worker.pid) - queued, (LONGEST - 1) * deadline_s)
            left = deadline_s + spared - (time.monotonic() - started)
        # Its reply may lie unread.
        await asyncio.wait([reading], timeout=0.1 if worker.exited.done() else 0.0)
        if not reading.done():
            reading.cancel()
            return None
        reply: bytes | None = reading.result()
        return reply

    async def _fork(self) -> _Worker:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        # fork and not exec: imports are done, so that a worker is there in milliseconds.
        supervisor, pid = os.getpid(), os.fork()
        if pid == 0:
            _become_worker(theirs, self.prints, supervisor, self.setup)
        theirs.close()
        # No await since the fork: a child that is not in the list is killed as one that a dead worker left behind.
        worker = self.workers[pid] = _Worker(pid, reader, writer)
        self._report("workers", 0, list(self.workers))
        return worker

    async def _end(self, worker: _Worker) -> int:
        """Kills the worker, if it lives, and all that it has started; returns its exit code."""
        _kill(worker.pid)
        code = await worker.exited
        # Its group once more: the worker may have started a process while it was dying.
        _kill(worker.pid)
        _kill_children(self.workers)
        worker.writer.close()
        self._report("workers", 0, list(self.workers))
        return code

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                worker = self.workers.pop(found[0], None)
                if worker is not None:
                    worker.exited.set_result(os.waitstatus_to_exitcode(found[1]))


def _become_worker(connection: socket.socket, prints: int, supervisor: int, setup: Setup) -> None:
    """In a forked child; does not return."""
    code = 1
    try:
        # A session of its own: killing its process group must not reach the supervisor.
        os.setsid()
        # The child must not touch the loop that it was forked out of.
        asyncio._set_running_loop(None)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for stream in (1, 2):
            os.dup2(prints, stream)
        # The sockets of the owner and of the other workers.
        os.closerange(3, connection.fileno())
        os.closerange(connection.fileno() + 1, 4096)
        # A process that a function starts would otherwise ignore it too.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with(supervisor, signal.SIGKILL)
        run(connection, setup)
        code = 0
    finally:
        # Without the exit handlers of the parent, which would close its files a second time.
        os._exit(code)


def _prctl(option: int, value: int) -> None:
    """Linux alone has it."""
    if prctl := getattr(ctypes.CDLL(None), "prctl", None):
        prctl(option, value)


def _kill(worker: int) -> None:
    """Kills a worker and its process group."""
    for kill in (os.kill, os.killpg):  # the first for a worker that has no group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(worker, signal.SIGKILL)


def _kill_children(workers: Any = ()) -> None:
    """Kills all children but `workers`: processes that a dead worker has left, though they may have left its group."""
    with contextlib.suppress(OSError):
        for pid in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()):
            if pid not in workers:
                _kill(pid)


def _queued_s(pid: int) -> float:
    """Seconds that a process was ready to run but waited for a processor; 0 where the system does not say."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="utf-8").split()[1]) / 1e9
    return 0.0
