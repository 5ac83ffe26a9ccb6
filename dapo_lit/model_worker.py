"""The one process that reads a stranger's model folder before this process does, and renders its chat template.

It has a clock and a limit of memory, as the workers of rewards have (rewards/supervisor.py), so that no file of a
folder can hold the trainer, whose wait ends with Ctrl-C. It starts with the first question, or before, while this
process imports what it needs itself.
"""

import itertools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dapo_lit.rewards.supervisor import Supervisor
    from dapo_lit.rewards.work import Outcome, Reading, Rendering

_NUMBERS = itertools.count(1)
_started: dict[int, "Supervisor"] = {}
"""By process: one that was forked has none yet."""


def start() -> "Supervisor":
    """Starts the process, unless it runs; returns at once."""
    from dapo_lit.rewards.supervisor import Supervisor
    from dapo_lit.rewards.work import Setup

    if os.getpid() not in _started:
        _started[os.getpid()] = Supervisor(Setup(symbolic=False, functions=(), models=True), 1)
    return _started[os.getpid()]


def ask(work: "Reading | Rendering", deadline_s: float) -> "Outcome":
    """Has the process do this work, and waits for it: a result, an error, or the end of its deadline."""
    from dapo_lit.rewards.work import Task

    supervisor, number = start(), next(_NUMBERS)
    supervisor.submit(Task(number, deadline_s, work))
    try:
        while True:
            for outcome in supervisor.poll(0.5):
                if outcome.number == number:
                    return outcome
    finally:
        # After Ctrl-C nobody wants the answer.
        supervisor.drop([number])
