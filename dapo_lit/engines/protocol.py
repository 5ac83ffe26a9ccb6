"""The interface of every rollout engine: token ids in, token ids out. Engines never see text or scores."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from dapo_lit.engines.samples import NO_TOKENS, ArrayRecord, PartialSample, Sample, SampleKey, TokenIds


class EngineError(RuntimeError):
    """The engine, or a server that samples for it, cannot go on."""


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling; training uses top_p = 1 and top_k = 0, because the ratio would be biased otherwise."""

    max_response_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    seed: int = 0

    def check(self) -> None:
        """Raises ValueError for settings that describe no distribution."""
        if self.max_response_tokens < 1:
            raise ValueError(f"max_response_tokens must be at least 1, got {self.max_response_tokens}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or positive, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (no limit) or positive, got {self.top_k}")


@dataclass(frozen=True, eq=False)
class SampleRequest(ArrayRecord):
    """One response wanted. Requests of a group follow each other and share their prompt_ids."""

    key: SampleKey
    prompt_ids: TokenIds
    partial: PartialSample = NO_TOKENS
    """Tokens of an interrupted response; the sample then starts with them."""

    @property
    def input_ids(self) -> TokenIds:
        """The prompt and the tokens that are already there, which the engine continues."""
        return np.concatenate([self.prompt_ids, self.partial.response_ids])

    def check_length(self, limit: int, max_model_tokens: int) -> None:
        """Raises ValueError for a prompt that is empty or leaves no room for a response of `limit` tokens."""
        if not len(self.prompt_ids) or len(self.prompt_ids) + limit > max_model_tokens:
            raise ValueError(
                f"prompt of {self.key} has {len(self.prompt_ids)} tokens; with {limit} of the response it must fit "
                f"into {max_model_tokens}: raise task.max_prompt_tokens, or leave the problem out"
            )


def head_dim_of(policy: Any) -> int:
    return getattr(policy, "head_dim", None) or policy.hidden_size // policy.num_attention_heads


def token_bytes(policy: Any, dtype: torch.dtype) -> int:
    """Bytes of a token's keys and values; `policy` is its config."""
    key_heads = getattr(policy, "num_key_value_heads", None) or policy.num_attention_heads
    return int(2 * policy.num_hidden_layers * key_heads * head_dim_of(policy) * dtype.itemsize)


class SampleStream(Protocol):
    """Requests go in at any time, samples come out as they end. All of it uses one version of the weights."""

    @property
    def pending(self) -> int:
        """Samples submitted and neither handed out nor withdrawn."""

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Queues requests; they are started in this order.

        Raises:
            ValueError: a prompt that cannot be sampled from.
        """

    def step(self) -> list[Sample]:
        """Samples a token or a few of every response under way; returns those that ended, perhaps none."""

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, PartialSample]:
        """Stops pending samples and returns their tokens so far; keys that are not pending are ignored."""


class RolloutEngine(ABC):
    """A sampler with its own copy of, or view on, the policy's weights."""

    version: int | None = None
    """Of the weights that the next samples come from; None: it has none."""
    concurrency: int
    """Samples decoded at once; more wait for their turn."""
    reproducible: bool = False
    """True if the same requests in the same order give the same samples, bit for bit."""
    takes_seeds: bool = True
    """True if a sample's noise follows from the seed of its Sampling and from its key."""
    rereads_weights: bool = False
    """True if the tensors of the last sync_weights may be read again later, to restart after a failure."""

    @abstractmethod
    def sync_weights(self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Samples drawn after this call come from exactly these weights (names as in the HF state dict)."""

    @abstractmethod
    def open(self, sampling: Sampling) -> SampleStream:
        """A stream of samples with the weights of the last sync_weights. One at a time.

        Raises:
            ValueError: a bad setting.
            RuntimeError: before the first sync_weights.
        """

    def generate(self, requests: Sequence[SampleRequest], sampling: Sampling) -> Iterator[Sample]:
        """Yields each sample when it ends, in order of ending; lazily, so that scoring overlaps sampling.

        The call itself raises what `open` and `SampleStream.submit` raise.
        """
        stream = self.open(sampling)
        stream.submit(requests)
        return run_to_end(stream)

    def rest(self) -> None:  # noqa: B027
        """Called when no sample is wanted for a while: memory may be given back, and then `version` is None."""

    @abstractmethod
    def close(self) -> None:
        """Frees what the engine holds."""


def run_to_end(stream: SampleStream) -> Iterator[Sample]:
    """Yields what is pending in a stream, in order of ending."""
    while stream.pending:
        yield from stream.step()
