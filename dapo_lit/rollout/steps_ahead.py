"""Rollout steps sampled while the policy trains on earlier ones (`rollout.steps_ahead`).

With k steps ahead, step s is always sampled with the weights after the updates of step s - 1 - k, whichever of the two
is faster. The same corrections apply to it as to carried-over tokens.
"""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from torch import Tensor

from dapo_lit.rollout.records import CollectedStep
from dapo_lit.rollout.step_collection import StopRequestedError

Snapshot = tuple[Iterable[tuple[str, Tensor]], int]
"""Named tensors that nobody changes any more, and their version."""
POLL_S = 0.2
"""How often a wait looks for a stop."""


class StepsAhead:
    """A queue of sampled steps, filled in order by a thread.

    sample: (step, version of the weights that will train on it, weights to sample it with) -> the step. It uses nothing
        that others use before they have called `wait`.
    """

    def __init__(self, sample: Callable[[int, int, Snapshot | None], CollectedStep]) -> None:
        self._sample = sample
        # One thread: a step takes the problems that the step before it left.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollouts")
        self._queue: deque[Future[CollectedStep | None]] = deque()
        self._failure: BaseException | None = None
        self.is_sampling = False
        self.cancelled = False
        """True if the step under way should end without a result."""

    def __len__(self) -> int:
        return len(self._queue)

    def start(self, step: int, version: int, weights: Snapshot | None) -> None:
        """Adds a step to the queue. weights: None: those that the engine has by then."""
        self._queue.append(self._thread.submit(self._sampled, step, version, weights))

    def _sampled(self, step: int, version: int, weights: Snapshot | None) -> CollectedStep | None:
        """None if this step or one before it failed."""
        if self._failure is not None:
            return None
        # Read by the thread that trains, to know whether the engine may be called.
        self.is_sampling = True
        try:
            return self._sample(step, version, weights)
        except BaseException as failure:
            # Kept, not raised: an exception in a thread would vanish, and steps after it depend on this one.
            self._failure = failure
            return None
        finally:
            self.is_sampling = False

    def wait(self, gives_up: Callable[[], bool] = lambda: False) -> list[CollectedStep]:
        """Waits for every step of the queue and returns them without removing them, up to one that failed.

        gives_up: whether there is no time left: the step under way is cancelled then, and the steps after it with it.
        A failure is kept for `first`: the steps before it do not depend on it.
        """
        for future in self._queue:
            while not future.done():
                self.cancelled = self.cancelled or gives_up()
                wait([future], POLL_S)
        return [step for future in self._queue if (step := future.result()) is not None]

    def first(self, stops: Callable[[], bool] = lambda: False) -> CollectedStep | None:
        """Waits for the first step, which stays in the queue; raises what its sampling raised. None: the queue is
        empty.

        Raises StopRequestedError if it is not there when `stops`.
        """
        if not self._queue:
            return None
        while not self._queue[0].done():
            if stops():
                raise StopRequestedError
            wait([self._queue[0]], POLL_S)
        step = self._queue[0].result()
        if step is None:
            self._queue.clear()
            failure, self._failure = self._failure, None
            assert failure is not None
            raise failure
        return step

    def remove_first(self) -> None:
        """Called when the first step is the one that is trained on: until then a checkpoint has to hold it."""
        self._queue.popleft()

    def restore(self, steps: Iterable[CollectedStep]) -> None:
        """Puts back what `wait` returned when a checkpoint was written."""
        self._queue.clear()
        for step in steps:
            # Steps of a checkpoint are done; wrapped alike, `first` need not tell them apart.
            future: Future[CollectedStep | None] = Future()
            future.set_result(step)
            self._queue.append(future)

    def close(self) -> None:
        """Ends the thread; a step under way is abandoned."""
        self.cancelled = True
        # Waits: an engine that is torn down under a thread that samples crashes the process.
        self._thread.shutdown(wait=True, cancel_futures=True)
