"""An engine that is restarted when it fails, once for each version of the weights.

Unfinished requests are submitted again and finished samples are kept, so the consumer of the stream notices nothing. A
second failure with the same weights ends the run; its message names the prompts under way.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from torch import Tensor

from dapo_lit.engines.protocol import (
    EngineError,
    PartialSample,
    RolloutEngine,
    Sample,
    SampleKey,
    SampleRequest,
    Sampling,
)

USER_ERRORS = (ValueError, NotImplementedError)
"""Faults of a request or a setting: a restart would not cure them."""


class EngineFailedError(EngineError):
    """The engine failed a second time."""


class RestartingEngine(RolloutEngine):
    """start: makes the engine, without weights."""

    rereads_weights = True

    def __init__(self, start: Callable[[], RolloutEngine]) -> None:
        self._start = start
        self._engine = start()
        self.concurrency, self.reproducible = self._engine.concurrency, self._engine.reproducible
        self.takes_seeds = self._engine.takes_seeds
        self._weights: tuple[Iterable[tuple[str, Tensor]], int] | None = None
        self._failed = False

    @property
    def current(self) -> RolloutEngine:
        """The engine in use now."""
        return self._engine

    def sync_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        self._weights, self._failed = (named_tensors, version), False
        try:
            self._engine.sync_weights(named_tensors, version)
        except USER_ERRORS:
            raise
        except Exception as error:
            self.restart(error, [])
        self.version = self._engine.version

    def restart(self, error: Exception, under_way: Sequence[SampleRequest]) -> None:
        """Replaces the engine by a new one with the current weights."""
        if self._failed:
            raise EngineFailedError(_message(error, under_way)) from error
        self._failed = True
        print(f"the rollout engine failed ({_named(error)}) and is restarted", flush=True)
        try:
            self._engine.close()
        except Exception as fault:  # it is broken, and the new one needs nothing from it
            print(f"the engine that failed could not be closed: {_named(fault)}", flush=True)
        try:
            self._engine = self._start()
            if self._weights is not None:
                self._engine.sync_weights(*self._weights)
        except Exception as again:
            raise EngineFailedError(_message(again, under_way)) from again

    def open(self, sampling: Sampling) -> "RestartingStream":
        return RestartingStream(self, sampling)

    def rest(self) -> None:
        self._engine.rest()
        self.version = self._engine.version

    def close(self) -> None:
        self._engine.close()


class RestartingStream:
    """Remembers the requests under way."""

    def __init__(self, engine: RestartingEngine, sampling: Sampling) -> None:
        self._engine = engine
        self._sampling = sampling
        self._stream = engine.current.open(sampling)
        self._requests: dict[SampleKey, SampleRequest] = {}

    @property
    def pending(self) -> int:
        return len(self._requests)

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        self._requests |= {request.key: request for request in requests}
        try:
            self._stream.submit(requests)
        except USER_ERRORS:
            raise
        except Exception as error:
            self._restart(error)

    def step(self) -> list[Sample]:
        try:
            samples = self._stream.step()
        except USER_ERRORS:
            raise
        except Exception as error:
            self._restart(error)
            return []
        for sample in samples:
            del self._requests[sample.key]
        return samples

    def _restart(self, error: Exception) -> None:
        under_way = list(self._requests.values())
        self._engine.restart(error, under_way)
        self._stream = self._engine.current.open(self._sampling)
        self._stream.submit(under_way)

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, PartialSample]:
        partial = self._stream.withdraw(keys)
        for key in partial:
            self._requests.pop(key, None)
        return partial


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _message(error: Exception, under_way: Sequence[SampleRequest]) -> str:
    names = sorted({request.key.problem_id for request in under_way})
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    listed = f"; prompts under way: {', '.join(names[:8])}{more}" if names else ""
    return f"the rollout engine failed twice with the same weights ({_named(error)}){listed}; continue with resume=true"
