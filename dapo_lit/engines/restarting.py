"""An engine that is started anew when it fails, once with every version of the weights.

The unfinished requests are submitted again and the samples that had ended are kept, so whoever consumes the stream
sees nothing of it. A second failure under the same weights ends the run; its message has the prompts under way.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from torch import Tensor

from dapo_lit.engines.protocol import RolloutEngine, SampleRequest, SampleStream, Sampling, run_to_end
from dapo_lit.engines.samples import Begun, Sample, SampleKey

USER_ERRORS = (ValueError, NotImplementedError)
"""Faults of a request or of a setting: another attempt would meet them again."""


class EngineFailedError(RuntimeError):
    """The engine failed a second time."""


class RestartingEngine:
    """start: makes the engine, without weights."""

    def __init__(self, start: Callable[[], RolloutEngine]) -> None:
        self._start = start
        self._engine = start()
        self._weights: tuple[Iterable[tuple[str, Tensor]], int] | None = None
        self._failed = False

    @property
    def current(self) -> RolloutEngine:
        """The engine that is at work now."""
        return self._engine

    @property
    def concurrency(self) -> int:
        return self._engine.concurrency

    @property
    def reproducible(self) -> bool:
        return self._engine.reproducible

    def sync_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        self._weights, self._failed = (named_tensors, version), False
        try:
            self._engine.sync_weights(named_tensors, version)
        except USER_ERRORS:
            raise
        except Exception as error:
            self.restart(error, [])

    def restart(self, error: Exception, under_way: Sequence[SampleRequest]) -> None:
        """A new engine with the current weights.

        Raises:
            EngineFailedError: it failed before under these weights, or the new one cannot take them.
        """
        if self._failed:
            raise EngineFailedError(_message(error, under_way)) from error
        self._failed = True
        print(f"the rollout engine failed ({_named(error)}) and is started again", flush=True)
        try:
            self._engine.close()
        except Exception as fault:  # it is broken: what it held is lost, and the new one does not need it
            print(f"the engine that failed could not be closed: {_named(fault)}", flush=True)
        try:
            self._engine = self._start()
            if self._weights is not None:
                self._engine.sync_weights(*self._weights)
        except Exception as again:
            raise EngineFailedError(_message(again, under_way)) from again

    def open(self, sampling: Sampling) -> "RestartingStream":
        return RestartingStream(self, sampling)

    def open_inner(self, sampling: Sampling) -> SampleStream:
        return self._engine.open(sampling)

    def generate(self, requests: Sequence[SampleRequest], sampling: Sampling) -> Iterator[Sample]:
        stream = self.open(sampling)
        stream.submit(requests)
        return run_to_end(stream)

    def rest(self) -> None:
        self._engine.rest()

    def close(self) -> None:
        self._engine.close()


class RestartingStream:
    """Remembers what is under way."""

    def __init__(self, engine: RestartingEngine, sampling: Sampling) -> None:
        self._engine = engine
        self._sampling = sampling
        self._stream = engine.open_inner(sampling)
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
        self._stream = self._engine.open_inner(self._sampling)
        self._stream.submit(under_way)

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, Begun]:
        begun = self._stream.withdraw(keys)
        for key in begun:
            self._requests.pop(key, None)
        return begun


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _message(error: Exception, under_way: Sequence[SampleRequest]) -> str:
    names = sorted({request.key.problem_id for request in under_way})
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    listed = f"; prompts under way: {', '.join(names[:8])}{more}" if names else ""
    return f"the rollout engine failed twice with the same weights ({_named(error)}){listed}; continue with resume=true"
