"""A rollout engine whose samples, and when they end, are written down beforehand: for tests of what consumes one."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from dapo_lit.rollout.engine import SampleRequest, Sampling
from dapo_lit.rollout.records import Sample, SampleKey


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

    def __post_init__(self) -> None:
        if not self.response_ids or len(self.response_ids) != len(self.logprobs):
            raise ValueError(f"want one log-prob a token and a token at least, got {self}")


class ScriptedEngine:
    """Replays a script, a function or a table from SampleKey to ScriptedResponse."""

    def __init__(self, script: Callable[[SampleKey], ScriptedResponse] | Mapping[SampleKey, ScriptedResponse]) -> None:
        self._script = script if callable(script) else script.__getitem__
        self.version: int | None = None
        """Of the last sync_weights; None before the first."""
        self.weights: dict[str, torch.Tensor] = {}
        """Copies of the tensors of the last sync_weights."""
        self.submitted: list[SampleRequest] = []
        """Requests of all calls, in order."""
        self.yielded: list[SampleKey] = []
        """Samples handed out so far, in order."""
        self.closed = False

    def sync_weights(self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self.weights = {name: tensor.detach().clone() for name, tensor in named_tensors}
        self.version = version

    def generate(self, requests: Sequence[SampleRequest], sampling: Sampling) -> Iterator[Sample]:
        """Yields the scripted samples by ending time.

        The call itself raises RuntimeError before the first sync_weights and KeyError for a key missing from a table.
        """
        if self.version is None:
            raise RuntimeError("sync_weights must be called before generate")
        self.submitted.extend(requests)
        scripted = sorted(((r.key, self._script(r.key)) for r in requests), key=lambda pair: pair[1].ends_at)
        return self._play(scripted, sampling.max_response_tokens, self.version)

    def _play(
        self, scripted: Sequence[tuple[SampleKey, ScriptedResponse]], limit: int, version: int
    ) -> Iterator[Sample]:
        for key, response in scripted:
            self.yielded.append(key)
            yield Sample(
                key=key,
                response_ids=response.response_ids[:limit],
                rollout_logprobs=response.logprobs[:limit],
                finished=response.finished and len(response.response_ids) <= limit,
                policy_version=version,
            )

    def close(self) -> None:
        self.closed = True
