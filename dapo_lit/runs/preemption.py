"""Stops a run on SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 or Ctrl-C, and puts its job back into SLURM's queue.

SLURM sends SIGTERM at a preemption, and requeues the job itself. The signal of `--signal` before the time limit is a
notice: the command requeues its job, once, when everything that it runs has saved itself (`requeued_after_notice`),
because SLURM ends the processes of a job that is requeued. submitit asks for SIGUSR2 and has its own handler that
requeues the job; it is called once the checkpoint is written.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ablations.ending import Stopped
from dapo_lit.log import log

NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
SIGNALS = (signal.SIGTERM, signal.SIGHUP, *NOTICES)
STARTS = 3
ONE_PRESS_S = 1.0
"""A Ctrl-C comes twice where a terminal sends it to all its processes and the one that started this passes it on."""


def stop_signals(numbers: Sequence[signal.Signals] = SIGNALS) -> list[signal.Signals]:
    """The signals that save a run and end it: not one that is ignored, as under nohup."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


class StopSignal:
    """Set by a signal: collection stops between samples, training after the step."""

    def __init__(self) -> None:
        self.requested = False
        self.number: int | None = None
        """The first signal that was received."""
        self._asked_at = self._patient_until = float("inf")
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.requested

    def hurries(self) -> bool:
        """True from when half of the grace period is over: what is left of it may be needed to save."""
        return self.requested and time.monotonic() > self._patient_until

    def install(self, grace_s: float) -> None:
        """Replaces the trainer's own handlers, which would end the run without a checkpoint, until the trainer ends.

        Ctrl-C waits for the step, however long that takes: between two updates there is nothing that a checkpoint can
        hold, and several ranks save together. The next Ctrl-C ends the run at once.
        """

        def on_signal(number: int, frame: FrameType | None) -> None:
            first, now = not self.requested, time.monotonic()
            if first:
                self.requested, self.number, self._asked_at = True, number, now
                self._patient_until = now + grace_s / 2
            if number != signal.SIGINT:
                signal.signal(signal.SIGALRM, out_of_time)
                signal.setitimer(signal.ITIMER_REAL, grace_s)
            elif first and os.environ.get("RANK", "0") == "0":
                os.write(2, b"stopping after this step; press Ctrl-C again to stop at once\n")
            elif now > self._asked_at + ONE_PRESS_S:
                signal.signal(number, self._before[number])
                os.kill(os.getpid(), number)

        def out_of_time(number: int, frame: FrameType | None) -> None:
            line = f"stopped: trainer.grace_s={grace_s:g} is over; resume=true continues from the last checkpoint\n"
            os.write(2, line.encode())  # nothing that Python buffers: `print` may be what was interrupted
            os._exit(128 + (self.number or 0))

        for number in stop_signals((*SIGNALS, signal.SIGINT)):
            self._before[number] = signal.signal(number, on_signal)

    def hand_over(self) -> None:
        """After the checkpoint: ends the grace period, and lets submitit's own handler requeue the job."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        before = self._before.get(self.number or 0)
        if self.number not in (signal.SIGTERM, signal.SIGHUP) and callable(before) and _is_submitits(before):
            before(self.number, None)


class EndedByNoticeError(SystemExit):
    """A command has saved itself because the time limit of its SLURM job is near; the exit code is 0."""


def end_after(number: int | None) -> SystemExit:
    """What ends a process that a signal stopped and that has saved itself."""
    return EndedByNoticeError(0) if number in NOTICES and "SLURM_JOB_ID" in os.environ else SystemExit(0)


@contextmanager
def requeued_after_notice() -> Iterator[None]:
    """Around a command: a notice puts its SLURM job back into the queue, when what runs within has saved itself, or at
    once while there are no steps to save, as when weights are read. A training replaces the handlers for its steps.

    Before the first step it does so in the first STARTS only: the notice of each comes as early, and would for ever.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if int(os.environ.get("SLURM_RESTART_COUNT", "0")) < STARTS:
            requeue()
        else:
            log.warning(
                f"SLURM's notice came before the first step of a job that was started {STARTS} times before; it is not "
                "requeued again: it needs a longer --time, or a --signal that comes later"
            )
        raise Stopped(number)

    for number in NOTICES if "SLURM_JOB_ID" in os.environ else ():
        if signal.getsignal(number) is signal.SIG_DFL:  # not submitit's
            signal.signal(number, stop)
    try:
        yield
    except EndedByNoticeError:
        requeue()
        raise


def name_rank_of_srun() -> None:
    """Gives a process that srun has started with others its rank, as torchrun does: before they have joined, the first
    of them speaks for all."""
    if int(os.environ.get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in os.environ:
        os.environ.setdefault("RANK", os.environ["SLURM_PROCID"])


def _is_submitits(handler: Callable[..., Any]) -> bool:
    """Tells submitit's handler from Lightning's, which would requeue a second time."""
    return (getattr(handler, "__module__", None) or "").startswith("submitit")


def requeue_command() -> list[str]:
    """The command that requeues this SLURM job, or this task of its array."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return ["scontrol", "requeue", f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]]


def requeue() -> None:
    """Puts the job into SLURM's queue again, where this is its first process; it then continues with resume=auto."""
    if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) != "0":
        return
    try:
        subprocess.run(requeue_command(), capture_output=True, encoding="utf-8", timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning(f"the job could not be requeued: {getattr(error, 'stderr', None) or error}")
    else:
        log.info("the job is in SLURM's queue again")
