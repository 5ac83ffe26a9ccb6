"""Status lines of a long rollout step: how far its groups are, and its rewards where nothing else is awaited."""

import time

from dapo_lit.rollout.dynamic_sampling import Admission
from dapo_lit.screen import StatusLine

ANOTHER_WAIT_S = 10.0
"""Seconds without a call after which it is another wait for rewards."""


class Progress:
    """Says how far one step is."""

    def __init__(self, step: int, admission: Admission) -> None:
        self._admission = admission
        self._line = StatusLine(f"step {step}")
        self._ended_before = admission.num_ended
        self._rewards, self._most_waiting = StatusLine(f"step {step}"), 0
        self._last_wait = float("-inf")

    def waits_for_rewards(self, tasks: int) -> bool:
        """Called twice a second while nothing but verdicts is awaited. Returns False: keep waiting."""
        now = time.monotonic()
        if now - self._last_wait > ANOTHER_WAIT_S:
            self._rewards, self._most_waiting = StatusLine(self._line.task), tasks
        self._last_wait = now
        self._rewards.update(self._most_waiting - tasks, self._most_waiting, f"waits for {tasks} tasks of the reward")
        return False

    def report(self) -> None:
        """The groups of the step, and when it ends at the rates so far."""
        admission = self._admission
        kept, ended, wanted = admission.kept, admission.num_ended, admission.rules.num_prompts
        left = max(0.0, admission.rules.allowance - ended)
        if kept:
            left = min(left, (wanted - kept) * ended / kept)
        new = ended - self._ended_before
        self._line.update(new, new + left, f"{kept} of {wanted} groups kept, {ended} sampled")

    def end(self) -> None:
        """The step is sampled."""
        self._line.erase()
