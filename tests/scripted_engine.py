"""A rollout engine whose samples, and when they end, are written down beforehand: for tests of what consumes one."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from dapo_lit.engines.protocol import (
    NO_OBSERVATIONS,
    Observations,
    PartialSample,
    RolloutEngine,
    Sample,
    SampleKey,
    SampleRequest,
    SampleStream,
    Sampling,
)


@dataclass(frozen=True)
class ScriptedResponse:
    """One response as it will be yielded."""

    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One a token, nats."""
    ends_at: float = 0.0
    """Samples of a call are yielded in this order; ties in the order of the requests."""
    finished: bool = True
    """Ended by an EOS token; responses above max_response_tokens are cut there and come back unfinished."""
    observations: Observations = NO_OBSERVATIONS
    """Of a whole episode; one that is withdrawn has none."""
    turn_rewards: tuple[float, ...] = ()
    """Of its turns."""


class ScriptedEngine(RolloutEngine):
    """Replays a script.

    concurrency: samples under way at once; the others wait. reproducible: what it says of itself.
    """

    def __init__(
        self,
        response: Callable[[SampleKey], ScriptedResponse],
        *,
        concurrency: int = 1_000_000,
        reproducible: bool = True,
    ) -> None:
        self.response = response
        self.concurrency = concurrency
        self.reproducible = reproducible
        self.stream: type[ScriptedStream] = ScriptedStream
        self.version: int | None = None
        self.submitted: list[SampleRequest] = []
        """Requests of all streams, in order."""
        self.yielded: list[SampleKey] = []
        """Samples handed out so far, in order."""

    def sync_weights(self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        deque(named_tensors, maxlen=0)  # gathering shards takes all ranks
        self.version = version

    def open(self, sampling: Sampling) -> "ScriptedStream":
        """Raises RuntimeError before the first sync_weights."""
        if self.version is None:
            raise RuntimeError("sync_weights must be called before generate")
        return self.stream(self, sampling.max_response_tokens, self.version)

    def close(self) -> None:
        pass


@dataclass
class _Playing:
    request: SampleRequest
    response: ScriptedResponse
    begins: float
    ends: float
    """On the stream's clock."""


class ScriptedStream(SampleStream):
    """A clock of its own: a step jumps to when the next sample ends. A response that goes on takes the time left."""

    def __init__(self, engine: ScriptedEngine, limit: int, version: int) -> None:
        self._engine = engine
        self._limit = limit
        self._version = version
        self._clock = 0.0
        self._waiting: deque[SampleRequest] = deque()
        self._playing: list[_Playing] = []

    @property
    def pending(self) -> int:
        return len(self._waiting) + len(self._playing)

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        self._engine.submitted.extend(requests)
        self._waiting.extend(requests)
        self._begin()

    def _begin(self) -> None:
        while self._waiting and len(self._playing) < self._engine.concurrency:
            request = self._waiting.popleft()
            response = self._engine.response(request.key)
            left = 1 - len(request.partial.response_ids) / len(response.response_ids)
            self._playing.append(_Playing(request, response, self._clock, self._clock + left * response.ends_at))

    def step(self) -> list[Sample]:
        """The sample that ends next; of several that end together, the one submitted first."""
        if not self._playing:
            return []
        playing = min(self._playing, key=lambda p: p.ends)
        self._playing.remove(playing)
        self._clock = max(self._clock, playing.ends)
        self._begin()
        key, response, limit = playing.request.key, playing.response, self._limit
        self._engine.yielded.append(key)
        before = playing.request.partial
        new = slice(len(before.response_ids), limit)
        finished = response.finished and len(response.response_ids) <= limit
        ended = before.ended(
            key, response.response_ids[new], response.logprobs[new], finished=finished, version=self._version
        )
        return [replace(ended, observations=response.observations, turn_rewards=response.turn_rewards)]

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, PartialSample]:
        wanted = frozenset(keys)
        found = {r.key: r.partial for r in self._waiting if r.key in wanted}
        found |= {p.request.key: self._so_far(p) for p in self._playing if p.request.key in wanted}
        self._waiting = deque(r for r in self._waiting if r.key not in wanted)
        self._playing = [p for p in self._playing if p.request.key not in wanted]
        self._begin()
        return found

    def _so_far(self, playing: _Playing) -> PartialSample:
        """The share of the tokens left that the time since it began is of the time left; never the last token."""
        before, response = playing.request.partial, playing.response
        done = len(before.response_ids)
        span = playing.ends - playing.begins
        share = (self._clock - playing.begins) / span if span > 0 else 0.0
        upto = min(done + int(share * (len(response.response_ids) - done)), len(response.response_ids) - 1, self._limit)
        return before.extended(response.response_ids[done:upto], response.logprobs[done:upto], self._version)
