"""What every rollout engine can do: token ids in, token ids out. Text and scores are not its business."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from dapo_lit.engines.samples import NOT_BEGUN, Begun, Sample, SampleKey


@dataclass(frozen=True)
class Sampling:
    """How to sample; training uses top_p = 1 and top_k = 0, the ratio would be biased otherwise."""

    max_response_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    seed: int = 0


@dataclass(frozen=True)
class SampleRequest:
    """One response wanted. Requests of a group follow each other and share their prompt_ids."""

    key: SampleKey
    prompt_ids: tuple[int, ...]
    begun: Begun = NOT_BEGUN
    """Where a response was interrupted; the sample then has these tokens first."""


class SampleStream(Protocol):
    """Requests go in at any time, samples come out as they end. All of it uses one version of the weights."""

    @property
    def pending(self) -> int:
        """Samples submitted and neither handed out nor withdrawn."""

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Queues requests; they are begun in this order.

        Raises:
            ValueError: a prompt that cannot be sampled from.
        """

    def step(self) -> list[Sample]:
        """Samples a token or a few of every response under way; returns those that ended, perhaps none."""

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, Begun]:
        """Gives up pending samples, and returns how far each came; keys that are not pending are passed over."""


class RolloutEngine(Protocol):
    """A sampler with its own copy of, or view on, the policy's weights."""

    @property
    def concurrency(self) -> int:
        """Samples decoded at once; more wait for their turn."""

    @property
    def reproducible(self) -> bool:
        """The same requests in the same order give the same samples, bit for bit."""

    def sync_weights(self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Samples drawn after this call come from exactly these weights (names as in the HF state dict).

        `named_tensors` can be walked through again until the next call, for an engine that has to start anew.
        """

    def open(self, sampling: Sampling) -> SampleStream:
        """A stream of samples with the weights of the last sync_weights. One at a time."""

    def generate(self, requests: Sequence[SampleRequest], sampling: Sampling) -> Iterator[Sample]:
        """Yields each sample when it ends, in order of ending; lazily, so that scoring overlaps sampling."""

    def rest(self) -> None:
        """No sample is wanted until the next sync_weights or open: memory may be given back."""

    def close(self) -> None:
        """Frees what the engine holds."""


def run_to_end(stream: SampleStream) -> Iterator[Sample]:
    """Yields what is pending in a stream, in order of ending."""
    while stream.pending:
        yield from stream.step()
