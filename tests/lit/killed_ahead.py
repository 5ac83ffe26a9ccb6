"""A training whose rank 1 is killed while it trains on one step and samples the one after the next, in two threads.

    RANK=1 ... python -m killed_ahead rollout.steps_ahead=2 ...     # a rank of a run, otherwise as dapo_lit.train

It kills itself where a signal from outside might come too early or too late: step SAMPLED has exchanged samples with
the other rank, and the first update of step TRAINED has its gradient.
"""

import os
import signal
import threading
from typing import Any

from dapo_lit.rollout.step_collection import StepCollection
from dapo_lit.step.optimizer import OptimizerSteps
from dapo_lit.step.updates import StepUpdates
from dapo_lit.train import main

TRAINED, SAMPLED = 3, 5
EXCHANGES = 2
"""Of the step that is sampled, before the kill. Each step has one more at least."""


def kill_in_the_middle() -> None:
    """Patches this process."""
    sampling, exchanges, trained = threading.Event(), [0], [0]
    take_in, run, take = StepCollection._take_in, StepUpdates.run, OptimizerSteps.take

    def takes_in_and_stays(self: StepCollection) -> bool:
        if self._step == SAMPLED:
            exchanges[0] += 1
            if exchanges[0] > EXCHANGES:
                sampling.set()
                threading.Event().wait()  # until the end
        return take_in(self)

    def runs(self: StepUpdates) -> None:
        trained[0] = self.step
        run(self)

    def takes(self: OptimizerSteps, *args: Any) -> bool:
        if trained[0] == TRAINED:
            sampling.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return take(self, *args)

    StepCollection._take_in, StepUpdates.run, OptimizerSteps.take = takes_in_and_stays, runs, takes  # type: ignore[method-assign]


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        kill_in_the_middle()
    main()
