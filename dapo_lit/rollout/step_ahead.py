"""The next rollout step, sampled while the policy trains on this one (`rollout.overlap`).

The batch of a step is then one step old, whichever of the two is faster: its sampling begins before the updates of
the step before it, and never earlier. What corrects for the age is what corrects for that of carried-over tokens.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from dapo_lit.rollout.collect import CollectedStep


class StepAhead:
    """At most one step under way, in a thread of its own.

    Args:
        sample: (step, version of the weights that will train on it) -> the step. While it runs, nobody else may use
            what it uses: call `wait` before.
    """

    def __init__(self, sample: Callable[[int, int], CollectedStep]) -> None:
        self._sample = sample
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollouts")
        self._under_way: Future[CollectedStep] | None = None
        self._sampled: CollectedStep | None = None
        self._failure: BaseException | None = None
        self.is_sampling = False
        self.given_up = False
        """Whether what is under way should end without a result."""

    def begin(self, step: int, version: int) -> None:
        assert self._under_way is None
        assert self._sampled is None
        self.is_sampling = True  # before the thread looks
        self._under_way = self._thread.submit(self._sample, step, version)

    def wait(self) -> CollectedStep | None:
        """The step that is ready, or will be; it stays here. None: none was begun, or its sampling failed.

        A failure waits for `take`: the row and the checkpoint of the step before do not depend on it.
        """
        if self._under_way is not None:
            self._failure = self._under_way.exception()
            self._sampled = None if self._failure else self._under_way.result()
            self._under_way, self.is_sampling = None, False
        return self._sampled

    def check(self) -> None:
        """As `wait`.

        Raises:
            whatever its sampling raised.
        """
        self.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def take(self) -> CollectedStep | None:
        """As `check`; it leaves."""
        self.check()
        found, self._sampled = self._sampled, None
        return found

    def restore(self, sampled: CollectedStep | None) -> None:
        """What `wait` gave when a checkpoint was made."""
        self._sampled = sampled

    def close(self) -> None:
        """Ends the thread; a step under way is given up."""
        self.given_up = True
        self._thread.shutdown(wait=True, cancel_futures=True)
