"""One worker process: reads tasks, compares answers, calls reward functions or an environment, replies.

`supervisor_process.py` forks it and kills it at the deadline of a task.
"""

import contextlib
import json
import os
import pickle
import resource
import signal
import socket
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dapo_lit.imports import described
from dapo_lit.rewards.channel import framed, receive
from dapo_lit.rewards.functions import (
    RewardFunction,
    call_function,
    needed_memory_mb,
    without_surrogates,
)
from dapo_lit.rewards.signatures import load_function
from dapo_lit.rewards.stepping import Step, load_environment, observed
from dapo_lit.rewards.work import Comparison, Reading, Rendering, Setup, Stepping, Work

OUT_OF_MEMORY = 77
"""Exit code of a worker that reached its limit: a fresh one takes over."""
MEMORY_MB = 2048
"""Address space of a worker, unless a function asks for more."""
MODELS_MB = 1024
"""Address space of a worker that reads models' files, of which its imports take 150."""
MAX_TRACEBACK = 8000
"""Characters of a traceback, the last ones."""


def run(connection: socket.socket, setup: Setup) -> None:
    """Serves tasks until the connection closes.

    First it says that it has loaded the functions, by an empty message, or why it cannot. A request is a pickle: the
    training process is trusted. A reply is JSON, since a worker that has handled hostile text is not (`reply.py`):
    [`done` or `failed`, task number, result, seconds]. The result of a task that failed is [error, traceback].
    """
    # Ctrl-C reaches the whole terminal; the trainer saves first and then closes the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker that a reward function crashes must not fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        functions = {path: load_function(path) for path in setup.functions}
        step = load_environment(setup.environment) if setup.environment else None
    except BaseException as error:
        connection.sendall(framed(described(error).encode(errors="replace")))
        return
    limit = max([MEMORY_MB, *map(needed_memory_mb, functions.values())]) * 2**20
    if setup.models:
        # A thread's arena takes as much address space as a large tokenizer.
        limit = MODELS_MB * 2**20
    # Already above it, or the platform has no such limit.
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    connection.sendall(framed(b""))
    pid = os.getpid()
    while (request := receive(connection)) is not None:
        number, work = pickle.loads(request)
        started = time.perf_counter()
        try:
            reply = ["done", number, _perform(work, functions, step)]
        except MemoryError:
            # After a MemoryError any next line may fail; a fresh worker is sure.
            os._exit(OUT_OF_MEMORY)
        except Exception as error:
            reply = ["failed", number, _reported(error)]
        # A function has forked, and returned in the child as well.
        if os.getpid() != pid:
            os._exit(0)
        connection.sendall(framed(json.dumps([*reply, time.perf_counter() - started]).encode("ascii")))


def _perform(work: Work, functions: Mapping[str, RewardFunction], step: Step | None) -> Any:
    if isinstance(work, Stepping):
        assert step is not None
        return observed(step(work.problem, work.responses))
    if isinstance(work, Comparison):
        # The fork server has imported it where it is needed.
        from math_answers.full import compared

        return compared(work.prediction, work.answer)
    if isinstance(work, Rendering | Reading):
        # As above.
        from dapo_lit.rewards.model_files import read_once, rendered

        return rendered(work) if isinstance(work, Rendering) else read_once(work)
    scores = call_function(functions[work.function], work.problems, work.texts, work.wrong_value)
    return [asdict(score) for score in scores]


def _reported(error: Exception) -> list[str]:
    """The error in one line, and its traceback from the first frame outside this package's rewards."""
    trace, here = error.__traceback__, str(Path(__file__).parent)
    # The first frame that is the user's: ours say nothing about the mistake.
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(here):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    return [without_surrogates(described(error)), without_surrogates(text[-MAX_TRACEBACK:])]
