"""Progress lines of a long rollout step, and warnings that name the prompts a stalled step waits for."""

import time
from collections.abc import Callable, Iterable, Sequence

from dapo_lit.engines.protocol import SampleKey
from dapo_lit.rollout.dynamic_sampling import Admission

REWARD_S = 10.0
"""Seconds between lines that say that a step waits for its reward."""


class Progress:
    """Prints about one step.

    stall_s: seconds without a finished sample before the prompts waited for are named; doubles with each message.
    every_s: seconds between the lines that say how far the step is; None: no such lines.
    """

    def __init__(self, step: int, admission: Admission, stall_s: float, every_s: float | None) -> None:
        self._step = step
        self._admission = admission
        self._stall_s = self._warn_after = stall_s
        self._every_s = every_s
        self._started = self._last_line = self._last_ended = time.monotonic()
        self._ended_before = admission.num_ended
        self._waits_since = self._last_wait = self._last_told = self._started

    def sample_ended(self) -> None:
        self._last_ended, self._warn_after = time.monotonic(), self._stall_s

    def warn_if_stalled(self, waiting_for: Callable[[], Iterable[SampleKey]]) -> None:
        seconds = time.monotonic() - self._last_ended
        if seconds < self._warn_after:
            return
        names = sorted({key.problem_id for key in waiting_for()})
        if names:
            print(
                f"step {self._step}: no sample has ended for {seconds:.0f} s; waiting for {listed(names)}", flush=True
            )
        self._warn_after *= 2

    def waits_for_rewards(self, tasks: int) -> bool:
        """Called while nothing but verdicts is awaited. Returns False: keep waiting."""
        now = time.monotonic()
        self._waits_since = self._waits_since if now - self._last_wait < 2 * REWARD_S else now
        self._last_wait = now
        if now - max(self._waits_since, self._last_told) >= REWARD_S:
            self._last_told = now
            seconds = now - self._waits_since
            print(
                f"step {self._step}: {tasks} tasks of the reward are under way; waiting for {seconds:.0f} s", flush=True
            )
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


def listed(names: Sequence[str]) -> str:
    """At most eight names, and how many more there are."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{len(names)} prompt{'s' if len(names) != 1 else ''}: {', '.join(names[:8])}{more}"
