"""vLLM in a process of its own, on the card of the trainer or beside it on a CPU.

An engine in the trainer's process shares its allocator, its workspaces and its failures: one illegal access of either
ends both. Here a crash of vLLM ends vLLM. It is started again without CUDA graphs, gets the same weights, and the
requests under way start again, each with its seed.

Weights go through a pipe, tensor by tensor: two copies through host memory, for which neither CUDA IPC nor shared
memory has to work. process_main.py is the other end.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from dapo_lit.engines.protocol import (
    EngineError,
    PartialSample,
    RolloutEngine,
    Sample,
    SampleKey,
    SampleRequest,
    SampleStream,
    Sampling,
)
from dapo_lit.engines.vllm_engine.installed import check_installed
from dapo_lit.engines.vllm_engine.options import VllmSettings
from dapo_lit.log import log

START_S = 1800.0
"""Compiling and capturing graphs takes minutes."""
ANSWER_S = 600.0
"""The longest wait for a step or for weights; a process that is silent for so long counts as failed."""
CLOSE_S = 10.0
FAILED = "vLLM's process failed"
"""Begins each line of the log about it."""
_COMMAND = (
    "import sys; sys.path[:] = {path!r}; from dapo_lit.engines.vllm_engine.process_main import main; "
    "main({fd}, {owner})"
)


class ProcessFailedError(RuntimeError):
    """vLLM's process has ended, or cannot go on."""


class VllmProcessEngine(RolloutEngine):
    """VllmEngine in a child process; the same samples but for rounding after a restart.

    Raises ValueError as VllmEngine does.
    """

    def __init__(
        self, config: PretrainedConfig, *, eos_ids: Sequence[int], dtype: torch.dtype, settings: VllmSettings
    ) -> None:
        check_installed()
        self.reproducible = settings.deterministic
        self.concurrency = settings.max_batch_size
        self.settings = settings
        # As it is now: the trainer will name its own attention in it, which vLLM's process does not know.
        self._given = (deepcopy(config), list(eos_ids), dtype)
        self._weights: list[tuple[str, Tensor]] = []
        self._restarted_at: int | None = None
        self._has_graphs = torch.cuda.is_available() and not settings.enforce_eager
        try:
            self._start()
        except (ProcessFailedError, ValueError) as failure:
            if not self._has_graphs:
                raise _as_value_error(failure) from None
            self._without_graphs(failure)
            try:
                self._start()
            except ProcessFailedError as again:
                raise _as_value_error(again) from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # what the trainer has freed must be free for vLLM
        ours, theirs = socket.socketpair()
        # A fresh interpreter: a fork would inherit the trainer's CUDA context, and `multiprocessing` would import the
        # training script. An empty entry of sys.path is this process's working directory.
        command = _COMMAND.format(path=[p or os.getcwd() for p in sys.path], fd=theirs.fileno(), owner=os.getpid())
        self._process = subprocess.Popen(
            [sys.executable, "-c", command],
            pass_fds=[theirs.fileno()],
            # On a CPU as many threads as an engine in this process would use.
            env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        # A stopped or hanging process reads nothing: a pipe that is full, or a message that stays half, is silence too.
        for way in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, way, struct.pack("@ll", int(ANSWER_S), 0))
        self._connection = Connection(ours.detach())
        # Also when the engine is dropped, and at the end of the interpreter.
        self._finalizer = weakref.finalize(self, _shut_down, self._process, self._connection)
        self._send(*self._given, self.settings)
        self.facts = {**self._answer(START_S), "placement": "process"}

    def _without_graphs(self, failure: Exception) -> None:
        log.warning(f"{FAILED} at its start with CUDA graphs ({failure}); it is started without them")
        self._finalizer()
        self.settings, self._has_graphs = replace(self.settings, enforce_eager=True), False

    def _send(self, *message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError:
            raise ProcessFailedError(self._end()) from None

    def _answer(self, wait_s: float) -> Any:
        """What the process answers to the last message.

        Raises ProcessFailedError: it has ended, or has failed, or is silent.
        Raises ValueError: it refuses what it was given.
        """
        try:
            if not self._connection.poll(wait_s):
                raise ProcessFailedError(f"no answer for {wait_s:g} s")
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            raise ProcessFailedError(self._end()) from None
        if kind == "refused":
            raise ValueError(value)
        if kind == "failed":
            raise ProcessFailedError(value)
        return value

    def _end(self) -> str:
        """How the process ended, whose pipe is closed or stuck."""
        try:
            code = self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            return "it takes nothing from its pipe"
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def ask(self, name: str, *arguments: Any) -> Any:
        self._send(name, *arguments)
        return self._answer(ANSWER_S)

    def restart(self, failure: ProcessFailedError) -> None:
        """Starts the process again, without graphs, and gives it the weights that it had.

        Raises EngineError: it has failed a second time under these weights.
        """
        if self._restarted_at == self.version:
            raise EngineError(f"{FAILED} again, after a restart: {failure}")
        self._restarted_at = self.version
        how = " without CUDA graphs" if self._has_graphs else ""
        log.warning(f"{FAILED} ({failure}); it is started again{how}, and the requests under way start again")
        self._finalizer()
        self.settings, self._has_graphs = replace(self.settings, enforce_eager=True), False
        try:
            self._start()
            self._load(self.version)
        except (ProcessFailedError, ValueError) as again:
            raise EngineError(f"vLLM's process does not start again: {again}") from again

    def sync_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """As VllmEngine. A copy stays in host memory: at a restart the policy may be in the middle of an update."""
        self.version = None
        self._weights = []  # before the new copy, or two would be in memory
        self._weights = [(name, tensor.detach().to("cpu", copy=True).contiguous()) for name, tensor in named_tensors]
        try:
            self._load(version)
        except ProcessFailedError as failure:
            self.version = version
            self.restart(failure)
        self.version = version

    def _load(self, version: int | None) -> None:
        self._send("sync", version)
        try:
            for name, tensor in self._weights:
                self._connection.send((name, tensor.dtype, tensor.shape))
                self._connection.send_bytes(tensor.flatten().view(torch.uint8).numpy().data)
            self._connection.send(None)
        except OSError:
            raise ProcessFailedError(self._end()) from None
        self._answer(ANSWER_S)

    def open(self, sampling: Sampling) -> "ProcessStream":
        if self.version is None:
            raise RuntimeError("sync_weights must be called before generate, and again after a rest")
        self.preemptions = 0
        try:
            self.ask("open", sampling)
        except ProcessFailedError as failure:
            self.restart(failure)
            self.ask("open", sampling)
        return ProcessStream(self, sampling)

    def release_memory(self) -> None:
        """As VllmEngine."""
        if self.settings.sleep:
            self.version = None
            with suppress(ProcessFailedError):  # the next sync_weights starts it again
                self.ask("release")

    def close(self) -> None:
        """Ends the process; the engine cannot be used any more."""
        self._finalizer()
        self._weights = []
        self.version = None


class ProcessStream(SampleStream):
    """The requests of one stream; kept here too, for a process that is started again."""

    def __init__(self, engine: VllmProcessEngine, sampling: Sampling) -> None:
        self._engine = engine
        self._sampling = sampling
        self._pending: dict[SampleKey, SampleRequest] = {}

    @property
    def pending(self) -> int:
        return len(self._pending)

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Raises ValueError for a prompt that is empty or leaves no room for the response."""
        for request in requests:
            request.check_length(self._sampling.max_response_tokens, self._engine.settings.max_model_tokens)
        self._pending.update((request.key, request) for request in requests)
        try:
            self._engine.ask("submit", list(requests))
        except ProcessFailedError as failure:
            self._start_again(failure)

    def step(self) -> list[Sample]:
        if not self._pending:
            return []
        try:
            samples, self._engine.preemptions = self._engine.ask("step")
        except ProcessFailedError as failure:
            self._start_again(failure)
            return []
        for sample in samples:
            del self._pending[sample.key]
        return list(samples)

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, PartialSample]:
        """After a failure with the tokens that the requests came with."""
        withdrawn = {key: self._pending.pop(key) for key in frozenset(keys) & self._pending.keys()}
        try:
            return dict(self._engine.ask("withdraw", list(withdrawn)))
        except ProcessFailedError as failure:
            self._start_again(failure)
            return {key: request.partial for key, request in withdrawn.items()}

    def _start_again(self, failure: ProcessFailedError) -> None:
        self._engine.restart(failure)
        try:
            self._engine.ask("open", self._sampling)
            self._engine.ask("submit", list(self._pending.values()))
        except ProcessFailedError as again:
            raise EngineError(f"{FAILED} again, after a restart: {again}") from again


def _as_value_error(failure: Exception) -> ValueError:
    return failure if isinstance(failure, ValueError) else ValueError(f"vLLM's process does not start: {failure}")


def _shut_down(process: "subprocess.Popen[bytes]", connection: Connection) -> None:
    connection.close()  # the process then ends by itself
    try:
        process.wait(CLOSE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
