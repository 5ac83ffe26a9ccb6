"""Progress lines of a long rollout step."""

import time

from dapo_lit.rollout.dynamic_sampling import Admission

REWARD_S = 10.0
"""Seconds between lines that say that a step waits for its reward."""


class Progress:
    """Prints about one step.

    every_s: seconds between the lines that say how far the step is; None: no such lines.
    """

    def __init__(self, step: int, admission: Admission, every_s: float | None) -> None:
        self._step = step
        self._admission = admission
        self._every_s = every_s
        self._started = self._last_line = time.monotonic()
        self._ended_before = admission.num_ended
        self._last_wait = self._last_told = self._started

    def waits_for_rewards(self, tasks: int) -> bool:
        """Called twice a second while nothing but verdicts is awaited. Returns False: keep waiting."""
        now = time.monotonic()
        if now - self._last_wait > REWARD_S:  # another wait than the last
            self._last_told = now
        self._last_wait = now
        if now - self._last_told >= REWARD_S:
            self._last_told = now
            print(f"step {self._step}: waits for {tasks} tasks of the reward", flush=True)
        return False

    def report(self) -> None:
        """Prints the state of the step, and when it ends at the rates so far."""
        now, admission = time.monotonic(), self._admission
        if self._every_s is None or now - self._last_line < self._every_s:
            return
        self._last_line = now
        kept, ended, wanted = admission.kept, admission.num_ended, admission.rules.num_prompts
        seconds, rest = now - self._started, max(0.0, admission.rules.allowance - ended)
        if kept:
            rest = min(rest, (wanted - kept) * ended / kept)
        new = ended - self._ended_before
        eta = f", eta {rest * seconds / new:.0f} s" if new > 0 else ""
        print(f"step {self._step}: {kept} of {wanted} groups kept, {ended} sampled, {seconds:.0f} s{eta}", flush=True)
