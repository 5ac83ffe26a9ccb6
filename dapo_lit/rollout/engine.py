"""What every rollout engine can do: token ids in, token ids out. Text and scores are not its business."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from dapo_lit.rollout.records import Sample, SampleKey


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


class RolloutEngine(Protocol):
    """A sampler with its own copy of, or view on, the policy's weights."""

    def sync_weights(self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Samples drawn after this call come from exactly these weights (names as in the HF state dict)."""

    def generate(self, requests: Sequence[SampleRequest], sampling: Sampling) -> Iterator[Sample]:
        """Yields each sample when it ends, in order of ending; lazily, so that scoring overlaps sampling."""

    def close(self) -> None:
        """Frees what the engine holds."""
