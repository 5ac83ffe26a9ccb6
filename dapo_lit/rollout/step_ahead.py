"""The next rollout step, sampled while the policy trains on this one (`rollout.overlap`).

The batch of a step is then exactly one step old, whichever of the two is faster, because its sampling always starts
before the updates of the step before it. The same corrections apply to it as to carried-over tokens.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from dapo_lit.rollout.records import CollectedStep


class StepAhead:
    """At most one step under way, in a thread of its own.

    sample: (step, version of the weights that will train on it) -> the step. Call `wait` before using anything that
        it uses.
    """

    def __init__(self, sample: Callable[[int, int], CollectedStep]) -> None:
        self._sample = sample
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollouts")
        self._under_way: Future[CollectedStep] | None = None
        self._sampled: CollectedStep | None = None
        self._failure: BaseException | None = None
        self.is_sampling = False
        self.cancelled = False
        """True if the step under way should end without a result."""

    def start(self, step: int, version: int) -> None:
        assert self._under_way is None
        assert self._sampled is None
        self.is_sampling = True  # set before the thread reads it
        self._under_way = self._thread.submit(self._sample, step, version)

    def wait(self) -> CollectedStep | None:
        """Waits for the step under way and returns it without removing it. None: none was started, or it failed.

        A failure is kept for `take`: the metrics and checkpoint of the step before do not depend on it.
        """
        if self._under_way is not None:
            self._failure = self._under_way.exception()
            self._sampled = None if self._failure else self._under_way.result()
            self._under_way, self.is_sampling = None, False
        return self._sampled

    def check(self) -> None:
        """Waits for the step under way and raises what its sampling raised."""
        self.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def take(self) -> CollectedStep | None:
        """Like `check`, but removes and returns the step."""
        self.check()
        found, self._sampled = self._sampled, None
        return found

    def restore(self, sampled: CollectedStep | None) -> None:
        """Puts back what `wait` returned when a checkpoint was written."""
        self._sampled = sampled

    def close(self) -> None:
        """Ends the thread; a step under way is abandoned."""
        self.cancelled = True
        self._thread.shutdown(wait=True, cancel_futures=True)
