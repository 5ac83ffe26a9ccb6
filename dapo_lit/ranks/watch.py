"""Ends this rank within a minute when another one has died, and names that one.

A collective waits for a rank that is gone until the process group's timeout, which is hours because an evaluation may
be long: gloo notices a closed connection, NCCL notices nothing, and neither notices a process that hangs. A thread on
every rank therefore counts a heartbeat in the group's store. Rank 0 looks at the processes on its machine and at all
heartbeats, and tells the others its verdict; the others check that rank 0 itself is there.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

from ablations.texts import read_text

TICK_S = 2.0
SILENT_TICKS = 20
"""A rank whose heartbeat does not change for so many ticks of the watching rank is lost."""
STORE_S = 15.0
"""Seconds in which the group's store must answer."""
LEAVE_S = 10.0
"""Seconds for the training thread to end by itself; one inside a collective may never return."""
STARTED_BY = "DAPO_LIT_STARTED_BY"
"""Environment variable of a rank that rank 0 started: the process id of rank 0."""


class RankWatch:
    """Watches from the start of the processes on, so also those that die before the group exists.

    children: the processes that this one started, in the order of their ranks from 1 on.
    has_starter: whether torchrun or srun started this process and outlives it. A shell may end before its run does.
    """

    def __init__(
        self, rank: int, size: int, children: Sequence["subprocess.Popen[bytes]"], has_starter: bool = False
    ) -> None:
        self.rank, self.size, self.children = rank, size, children
        self._starter = os.getppid() if has_starter else None
        self._here = {0: int(os.environ[STARTED_BY])} if rank and STARTED_BY in os.environ else {}
        """Process ids of other ranks on this machine."""
        self._store: Any = None
        self._lost: str | None = None
        self._noticed, self._ended = Event(), Event()
        self._thread = Thread(target=self._watch, name="rank watch", daemon=True)
        self._thread.start()

    def joined(self, store: Any) -> None:
        """Starts the heartbeats; `store` is that of the process group."""
        own = store.clone()  # the training thread may wait in the other one
        own.set_timeout(timedelta(seconds=STORE_S))
        own.set(f"process/{self.rank}", f"{_machine()} {os.getpid()}")
        for rank in range(1, self.size) if self.rank == 0 else (0,):
            machine, process = own.get(f"process/{rank}").decode().rsplit(" ", 1)
            if machine == _machine():
                self._here[rank] = int(process)
        self._store = own

    def lost(self) -> str | None:
        """The fate of another rank, after a collective has failed here; None if all live on after LEAVE_S."""
        self._noticed.wait(LEAVE_S)
        return self._lost

    def close(self) -> None:
        self._ended.set()
        self._thread.join(TICK_S)

    def _watch(self) -> None:
        beats: dict[int, int] = {}
        silent: dict[int, int] = {}
        while not self._ended.wait(TICK_S):
            lost = self._ended_process()
            if lost is None and self._store is not None:
                try:
                    lost = self._verdict(beats, silent)
                except RuntimeError:  # torch's errors of a store
                    lost = "the store of the process group does not answer: rank 0 has ended, or what started the ranks"
            if lost is not None:
                self._leave(lost)

    def _ended_process(self) -> str | None:
        # The kernel gives an orphan another parent. Without a starter nobody would end ranks that wait for each other.
        if self._starter not in (None, os.getppid()):
            return f"the process that started rank {self.rank} has ended"
        for rank, child in enumerate(self.children, 1):
            if code := child.poll():
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                return f"rank {rank} (process {child.pid}) {how}"
        for rank, process in self._here.items():
            try:
                os.kill(process, 0)
            except ProcessLookupError:
                return f"rank {rank} (process {process}) has ended"
        return None

    def _verdict(self, beats: dict[int, int], silent: dict[int, int]) -> str | None:
        """One tick with the store. Ticks are counted instead of seconds: a suspended machine loses no rank."""
        self._store.add(f"beat/{self.rank}", 1)
        for rank in range(self.size) if self.rank == 0 else (0,):
            beat = self._store.add(f"beat/{rank}", 0)
            silent[rank] = silent.get(rank, 0) + 1 if beats.get(rank) == beat else 0
            beats[rank] = beat
            if silent[rank] >= SILENT_TICKS:
                return f"rank {rank} sent no heartbeat for {SILENT_TICKS * TICK_S:.0f} s"
        return self._store.get("lost").decode() if self._store.check(["lost"]) else None

    def _leave(self, lost: str) -> None:
        """Lets the training thread end; otherwise ends this process and those it started."""
        self._lost = lost
        self._noticed.set()
        if self.rank == 0 and self._store is not None:
            with suppress(RuntimeError):  # torchrun's agent keeps the store, and may be what has ended
                self._store.set("lost", lost)
        if self._ended.wait(LEAVE_S):
            return
        print(f"error: {lost}; rank {self.rank} ends as well. Continue with resume=true", file=sys.stderr, flush=True)
        for child in self.children:
            child.kill()
        os._exit(1)


def _machine() -> str:
    """Names the machine and its space of process ids: containers on one host may have several.

    Machines of one image may have one host name, but never started at once with the same random number.
    """
    space, boot = Path("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id")
    started = read_text(boot).strip() if boot.is_file() else ""
    return f"{socket.gethostname()} {started} {space.readlink() if space.is_symlink() else ''}"
