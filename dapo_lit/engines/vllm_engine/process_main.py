"""The process that samples for `process.py`: a VllmEngine at the other end of a pipe.

It ends when the pipe closes, when the trainer is gone, or when the engine has failed; it ignores signals that a
terminal or a scheduler sends to all, because the run saves itself first.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from math import prod
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from ablations.ending import SIGNALS
from dapo_lit.engines.protocol import SampleStream
from dapo_lit.engines.vllm_engine.engine import VllmEngine

LOOK_S = 1.0


def main(fd: int, owner: int) -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(owner,), daemon=True).start()
    # BrokenPipeError: the trainer has ended, and does not wait for an answer.
    with Connection(fd) as pipe, suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _serve(pipe)


def _end_with(owner: int) -> None:
    # A killed trainer closes the pipe, but nobody reads it while a step is under way or hangs.
    while os.getppid() == owner:
        time.sleep(LOOK_S)
    os._exit(1)


def _serve(pipe: Connection) -> None:
    config, eos_ids, dtype, settings = pipe.recv()
    try:
        engine = VllmEngine(config, eos_ids=eos_ids, dtype=dtype, settings=settings)
    except ValueError as error:
        pipe.send(("refused", str(error)))
        return
    with closing(engine):
        pipe.send(("done", dict(engine.facts)))
        _answer_orders(engine, pipe)


def _answer_orders(engine: VllmEngine, pipe: Connection) -> None:
    stream: SampleStream | None = None
    while True:
        name, *given = pipe.recv()
        try:
            if name == "open":
                stream = engine.open(*given)
                answer: Any = None
            else:
                answer = _done(name, given, engine, stream, pipe)
        except ValueError as error:
            pipe.send(("refused", str(error)))
        except Exception as error:  # of vLLM or torch: what the engine holds is not to be trusted any more
            pipe.send(("failed", f"{type(error).__name__}: {error}".splitlines()[0]))
            return
        else:
            pipe.send(("done", answer))


def _done(name: str, given: list[Any], engine: VllmEngine, stream: SampleStream | None, pipe: Connection) -> Any:
    if name == "sync":
        tensors = _received(pipe)
        try:
            engine.sync_weights(tensors, *given)
        finally:
            # Whatever the load did not take: the next message must be the next order.
            for _ in tensors:
                pass
        return None
    if name == "release":
        return engine.release_memory()
    assert stream is not None
    if name == "submit":
        return stream.submit(*given)
    if name == "withdraw":
        return stream.withdraw(*given)
    assert name == "step"
    return stream.step(), engine.preemptions


def _received(pipe: Connection) -> Iterator[tuple[str, Tensor]]:
    while (header := pipe.recv()) is not None:
        name, dtype, shape = header
        bytes_ = torch.empty(prod(shape) * dtype.itemsize, dtype=torch.uint8, device="cpu")
        pipe.recv_bytes_into(bytes_.numpy().data)
        yield name, bytes_.view(dtype).view(shape)
