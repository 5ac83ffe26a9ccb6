"""A run that is asked to leave: SIGTERM, SIGUSR1 and SIGUSR2, and what SLURM needs to start it again.

SLURM sends SIGTERM at a preemption and the signal of `--signal` before the time limit. submitit asks for SIGUSR2 and
has a handler of its own that puts the job back into the queue; it is called once the checkpoint is there.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class StopSignal:
    """Set by a signal; collection stops between samples, training after the step."""

    def __init__(self) -> None:
        self.requested = False
        self.number: int | None = None
        """The signal that came first."""
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.requested

    def install(self, grace_s: float) -> None:
        """Replaces the trainer's own handlers, which would end the run without a checkpoint."""

        def on_signal(number: int, frame: FrameType | None) -> None:
            self.requested = True
            self.number = self.number or number
            signal.signal(signal.SIGALRM, lambda *_: os._exit(128 + number))  # the grace period is over
            signal.setitimer(signal.ITIMER_REAL, grace_s)

        for number in SIGNALS:
            self._before[number] = signal.signal(number, on_signal)

    def hand_over(self) -> None:
        """After the checkpoint: lets a handler that was there before (submitit's) put the job back into the queue."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        before = self._before.get(self.number or 0)
        if self.number != signal.SIGTERM and callable(before) and _is_submitits(before):
            before(self.number, None)

    @property
    def wants_requeue(self) -> bool:
        """The time limit is near and nobody else starts the job again; at a preemption SLURM does so itself."""
        return self.number in (signal.SIGUSR1, signal.SIGUSR2) and "SLURM_JOB_ID" in os.environ


def _is_submitits(handler: Callable[..., Any]) -> bool:
    """Lightning's handlers were there before too; theirs would requeue a second time."""
    return (getattr(handler, "__module__", None) or "").startswith("submitit")


def requeue_command() -> list[str]:
    """What puts this job, or this task of its array, back into SLURM's queue."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return ["scontrol", "requeue", f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]]


def requeue() -> bool:
    """Puts the job back into SLURM's queue; whether SLURM took it. The run then continues with resume=auto."""
    try:
        done = subprocess.run(requeue_command(), capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"the job could not be put back into the queue: {error}", flush=True)
        return False
    if done.returncode:
        print(f"the job could not be put back into the queue: {done.stderr.strip()}", flush=True)
    return done.returncode == 0
