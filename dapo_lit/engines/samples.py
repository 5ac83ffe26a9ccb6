"""One sampled response as arrays, and the key that names it."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]
Logprobs = NDArray[np.float32]
VersionRuns = tuple[tuple[int, int], ...]
"""(weight version, number of tokens) for consecutive tokens of a response."""

ARRAY_TYPES: dict[str, type[np.generic]] = {
    "ids": np.int32,
    "prompt_ids": np.int32,
    "response_ids": np.int32,
    "rollout_logprobs": np.float32,
}
"""Fields of an ArrayRecord that are arrays."""


def token_ids(ids: Iterable[int]) -> TokenIds:
    """Token ids as the records hold them."""
    return np.fromiter(ids, np.int32)


class ArrayRecord:
    """Base of dataclasses (with eq=False) that hold token arrays.

    Fields named in ARRAY_TYPES are converted from any sequence. Records are compared and hashed by value. Nobody writes
    into the arrays: copies of a record share them.

    >>> PartialSample([1, 2], [-0.5, -1.0], ((3, 2),)) == PartialSample((1, 2), (-0.5, -1.0), ((3, 2),))
    True
    """

    def __post_init__(self) -> None:
        for name, dtype in ARRAY_TYPES.items():
            value = vars(self).get(name)
            if value is not None and getattr(value, "dtype", None) != dtype:
                object.__setattr__(self, name, np.asarray(value, dtype))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            _same(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)  # type: ignore[arg-type]
        )

    def __hash__(self) -> int:
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return hash(tuple(v.tobytes() if isinstance(v, np.ndarray) else v for v in values))


def _same(one: Any, other: Any) -> bool:
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


@dataclass(frozen=True)
class SampleKey:
    """Names one sample of a run; with the seed it fixes the sample's noise, whatever the batch or the rank."""

    step: int
    problem_id: str
    attempt: int
    """Earlier submissions of the problem in this step."""
    sample_index: int
    """Position in the group, 0 .. G-1."""


@dataclass(frozen=True, eq=False)
class Sample(ArrayRecord):
    """One response as the engine returns it."""

    key: SampleKey
    response_ids: TokenIds
    """Sampled tokens, with the EOS token where one ended the response; at least 1, at most max_response_tokens."""
    rollout_logprobs: Logprobs
    """Log-prob (nats) of each token under the distribution it was drawn from: temperature, top-p, top-k applied."""
    finished: bool
    """Ended by an EOS token; False: cut off at the limit (truncated)."""
    policy_version: int
    """Weight version that sampled its last token, and all tokens after those of `earlier_versions`."""
    earlier_versions: VersionRuns = ()
    """Weight versions of its first tokens, where it continues a PartialSample."""

    @property
    def num_new_tokens(self) -> int:
        """Tokens that were not part of a PartialSample."""
        return len(self.response_ids) - sum(count for _, count in self.earlier_versions)

    @property
    def versions(self) -> VersionRuns:
        """Weight versions of all tokens."""
        return (*self.earlier_versions, (self.policy_version, self.num_new_tokens))


@dataclass(frozen=True, eq=False)
class PartialSample(ArrayRecord):
    """The tokens of an interrupted response, from which an engine can continue."""

    response_ids: TokenIds
    rollout_logprobs: Logprobs
    """Log-prob (nats) of each token under the weights that sampled it."""
    versions: VersionRuns = ()

    def extended(self, ids: Any, logprobs: Any, version: int) -> "PartialSample":
        """These tokens followed by tokens sampled with the weights of `version`."""
        if not len(ids):
            return self
        return PartialSample(
            np.concatenate([self.response_ids, np.asarray(ids, np.int32)]),
            np.concatenate([self.rollout_logprobs, np.asarray(logprobs, np.float32)]),
            (*self.versions, (version, len(ids))),
        )

    def ended(self, key: SampleKey, ids: Any, logprobs: Any, *, finished: bool, version: int) -> Sample:
        """The complete response: these tokens followed by the last ones, sampled with the weights of `version`."""
        whole = self.extended(ids, logprobs, version)
        return Sample(key, whole.response_ids, whole.rollout_logprobs, finished, version, self.versions)


NO_TOKENS = PartialSample(np.empty(0, np.int32), np.empty(0, np.float32))
