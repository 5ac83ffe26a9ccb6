"""The interface of every rollout engine: token ids in, token ids out. Engines never see text or scores."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
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
    "places": np.int32,
}
"""Fields of an ArrayRecord that are arrays."""


def token_ids(ids: Iterable[int]) -> TokenIds:
    """Token ids as the records hold them."""
    # int32: half of what int64 takes, and a batch of the paper's size has tens of millions of tokens.
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
                # Records are frozen, so that a sample cannot change after its log-probs were measured.
                object.__setattr__(self, name, np.asarray(value, dtype))

    def __eq__(self, other: object) -> bool:
        # The generated __eq__ compares arrays with ==, which gives an array and no verdict.
        return type(other) is type(self) and all(
            _same(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)  # type: ignore[arg-type]
        )

    def __hash__(self) -> int:
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return hash(tuple(v.tobytes() if isinstance(v, np.ndarray) else v for v in values))


def _same(one: Any, other: Any) -> bool:
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


@dataclass(frozen=True, eq=False)
class Observations(ArrayRecord):
    """The tokens of an episode that its environment appended: context of the policy's tokens, never trained on.

    A record of samples keeps them apart from the policy's tokens, so that whatever counts, averages or trains the
    tokens of a response has those of the policy and no others. Two methods know both: `row` and `row_places`.

    >>> seen = Observations([7, 8], [2, 2])
    >>> seen.row(np.array([1, 2, 3])).tolist(), seen.row_places(3).tolist()
    ([1, 2, 7, 8, 3], [0, 1, 4])
    """

    ids: TokenIds
    """All of them, in order."""
    places: TokenIds
    """Before which token of the policy each is; ascending. Equal for the tokens of one observation."""

    def __len__(self) -> int:
        return len(self.ids)

    def row(self, policy_ids: TokenIds) -> TokenIds:
        """The episode as the policy sees it: its own tokens and these, each in its place."""
        # Equal places keep their order.
        return np.insert(policy_ids, self.places, self.ids) if len(self) else policy_ids

    def row_places(self, num_policy_tokens: int) -> NDArray[np.int64]:
        """[num_policy_tokens] where each of the policy's tokens is in the row."""
        own = np.arange(num_policy_tokens)
        return own + np.searchsorted(self.places, own, side="right")

    @property
    def by_place(self) -> list[tuple[int, TokenIds]]:
        """Each observation, with the number of the policy's tokens before it."""
        places, starts = np.unique(self.places, return_index=True)
        return [*zip(places.tolist(), np.split(self.ids, starts[1:]), strict=False)] if len(self) else []

    def followed_by(self, ids: Iterable[int], place: int) -> "Observations":
        """With one more observation, after `place` tokens of the policy."""
        new = token_ids(ids)
        return Observations(np.append(self.ids, new), np.append(self.places, np.full(len(new), place)))


NO_OBSERVATIONS = Observations(np.empty(0, np.int32), np.empty(0, np.int32))


EVALUATION_STEP = -1
"""Used as rollout step of the sample keys, so that every evaluation of a run draws the same noise."""


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
    """One response as the engine returns it: of an episode with an environment, all turns of the policy."""

    key: SampleKey
    response_ids: TokenIds
    """Sampled tokens, with the EOS token where one ended the response; at least 1, at most max_response_tokens. Of an
    episode with each turn's EOS token."""
    rollout_logprobs: Logprobs
    """Log-prob (nats) of each token under the distribution it was drawn from: temperature and top-p applied."""
    finished: bool
    """Ended by an EOS token; False: cut off at the limit (truncated)."""
    policy_version: int
    """Weight version that sampled its last token, and all tokens after those of `earlier_versions`."""
    earlier_versions: VersionRuns = ()
    """Weight versions of its first tokens, where it continues a PartialSample."""
    observations: Observations = NO_OBSERVATIONS
    """Of an episode: what the environment answered. The last token is always the policy's."""
    ended_by: str = ""
    """Of an episode: what ended it, one of `rollout/episodes.py: ENDS`; "" without an environment."""
    failure: str | None = None
    """The error of its environment: there is no verdict on it."""
    turn_rewards: tuple[float, ...] = ()
    """Of an episode: what the environment gave for each turn that it answered, in order; 0 where it gave none."""

    @property
    def row_ids(self) -> TokenIds:
        """Everything after the prompt, observations included."""
        return self.observations.row(self.response_ids)

    @property
    def num_new_tokens(self) -> int:
        """Tokens that were not part of a PartialSample."""
        # What this step paid for: tokens of an interrupted response were paid for by the step that drew them.
        return len(self.response_ids) - sum(count for _, count in self.earlier_versions)

    @property
    def versions(self) -> VersionRuns:
        """Weight versions of all tokens."""
        new = self.num_new_tokens
        return (*self.earlier_versions, (self.policy_version, new)) if new else self.earlier_versions

    @property
    def paid(self) -> "Sample":
        """As a later step has it, which draws none of its tokens."""
        return replace(self, earlier_versions=self.versions)


@dataclass(frozen=True, eq=False)
class PartialSample(ArrayRecord):
    """The tokens of an interrupted response, from which an engine can continue."""

    response_ids: TokenIds
    rollout_logprobs: Logprobs
    """Log-prob (nats) of each token under the weights that sampled it."""
    versions: VersionRuns = ()
    observations: Observations = NO_OBSERVATIONS
    """Unlike those of a whole Sample, they may be the end of the row."""
    turn_ended: bool = False
    """Of an episode: its last token ended a turn, and its environment has not answered. No engine draws a token of it
    before."""
    turn_rewards: tuple[float, ...] = ()
    """As a Sample's."""

    def extended(self, ids: Any, logprobs: Any, version: int) -> "PartialSample":
        """These tokens followed by tokens sampled with the weights of `version`."""
        if not len(ids):
            return self
        return PartialSample(
            np.concatenate([self.response_ids, np.asarray(ids, np.int32)]),
            np.concatenate([self.rollout_logprobs, np.asarray(logprobs, np.float32)]),
            (*self.versions, (version, len(ids))),
            self.observations,
            turn_rewards=self.turn_rewards,
        )

    def ended(self, key: SampleKey, ids: Any, logprobs: Any, *, finished: bool, version: int) -> Sample:
        """The complete response: these tokens followed by the last ones, sampled with the weights of `version`."""
        whole = self.extended(ids, logprobs, version)
        return Sample(
            key,
            whole.response_ids,
            whole.rollout_logprobs,
            finished,
            version,
            self.versions,
            self.observations,
            turn_rewards=self.turn_rewards,
        )


NO_TOKENS = PartialSample(np.empty(0, np.int32), np.empty(0, np.float32))


class EngineError(RuntimeError):
    """The engine, or a server that samples for it, cannot go on."""


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling; training uses top_p = 1, because the ratio would be biased otherwise."""

    max_response_tokens: int
    temperature: float = 1.0
    """0: greedy."""
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, eq=False)
class SampleRequest(ArrayRecord):
    """One response wanted. Requests of a group follow each other and share their prompt_ids."""

    key: SampleKey
    prompt_ids: TokenIds
    partial: PartialSample = NO_TOKENS
    """Tokens of an interrupted response, or the turns of an episode so far; the sample then starts with them."""
    most_tokens: int | None = None
    """The response is cut off at so many tokens of the policy, those of `partial` included, if that is below
    max_response_tokens; None: at max_response_tokens."""
    is_turn: bool = False
    """Of an episode: once it has ended with an EOS token, a request that continues it may follow before the next step
    of the stream."""

    @property
    def input_ids(self) -> TokenIds:
        """The prompt and the tokens that are already there, which the engine continues."""
        # To an engine the tokens that are there already are a longer prompt.
        return np.concatenate([self.prompt_ids, self.partial.observations.row(self.partial.response_ids)])

    def limit(self, sampling: Sampling) -> int:
        """The number of the policy's tokens at which the response is cut off."""
        most = sampling.max_response_tokens
        return most if self.most_tokens is None else min(most, self.most_tokens)

    def check_length(self, limit: int, max_model_tokens: int) -> None:
        """Raises ValueError for a prompt that is empty or leaves no room for a response of `limit` tokens."""
        # Refused before the step: vLLM would end such a response early, and it would count as truncated.
        seen = len(self.partial.observations)
        if not len(self.prompt_ids) or len(self.prompt_ids) + seen + limit > max_model_tokens:
            raise ValueError(
                f"prompt of {self.key} has {len(self.prompt_ids)} tokens; with {limit} of the response it must fit "
                f"into {max_model_tokens}: raise task.max_prompt_tokens, or leave the problem out"
            )


def token_bytes(policy: Any, dtype: torch.dtype) -> int:
    """Bytes of a token's keys and values; `policy` is its config."""
    # Grouped heads store fewer keys than there are queries; families without the field have as many.
    key_heads = getattr(policy, "num_key_value_heads", None) or policy.num_attention_heads
    head_dim = getattr(policy, "head_dim", None) or policy.hidden_size // policy.num_attention_heads
    return int(2 * policy.num_hidden_layers * key_heads * head_dim * dtype.itemsize)


class SampleStream(Protocol):
    """Requests go in at any time, samples come out as they end. All of it uses one version of the weights."""

    @property
    def pending(self) -> int:
        """Samples submitted and neither handed out nor withdrawn."""

    @property
    def waiting(self) -> int:
        """Of `pending`: those that take no place of the engine, because they wait for something else."""
        return 0

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Queues requests; they are started in this order.

        Raises ValueError: a prompt that cannot be sampled from.
        """

    def step(self) -> list[Sample]:
        """Samples a token or a few of every response under way; returns those that ended, perhaps none."""

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, PartialSample]:
        """Stops pending samples and returns their tokens so far; keys that are not pending are ignored."""


class RolloutEngine(ABC):
    """A sampler with its own copy of, or view on, the policy's weights."""

    version: int | None = None
    """Version of the weights that the next samples come from; None: the engine has none yet."""
    concurrency: int
    """Samples decoded at once; more wait for their turn."""
    reproducible: bool = False
    """True if the same requests in the same order give the same samples, bit for bit."""
    preemptions: int | None = 0
    """Responses of the last stream that a full key-value cache put back, to be computed again. None: not known."""
    facts: Mapping[str, Any] = {}
    """The engine in effect, for run.json; the environment may have changed what was asked for."""
    draws: bool = True
    """False if its samples are recorded: there is nothing to probe."""
    takes_weights: bool = True
    """False on a rank whose tensors sync_weights only has gathered: another rank passes them on."""

    @property
    def sampler(self) -> "RolloutEngine":
        """The engine that draws the tokens, without what may stand around it."""
        return self

    @abstractmethod
    def sync_weights(self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Samples drawn after this call come from exactly these weights (names as in the HF state dict)."""

    @abstractmethod
    def open(self, sampling: Sampling) -> SampleStream:
        """A stream of samples with the weights of the last sync_weights. One at a time.

        Raises ValueError: a bad setting.
        Raises RuntimeError: before the first sync_weights.
        """

    def generate(self, requests: Sequence[SampleRequest], sampling: Sampling) -> Iterator[Sample]:
        """Yields each sample when it ends, in order of ending; lazily, so that scoring overlaps sampling.

        The call itself raises what `open` and `SampleStream.submit` raise.
        """
        # Outside the generator, or errors would come with the first sample instead of with the call.
        stream = self.open(sampling)
        stream.submit(requests)
        return run_to_end(stream)

    def release_memory(self) -> None:  # noqa: B027
        """Called when no sample is wanted for a while: memory may be given back, and then `version` is None."""

    @abstractmethod
    def close(self) -> None:
        """Frees what the engine holds."""


def run_to_end(stream: SampleStream, gives_up: Callable[[], bool] = lambda: False) -> Iterator[Sample]:
    """Yields what is pending in a stream, in order of ending, until `gives_up`, which is asked before every step."""
    while stream.pending and not gives_up():
        yield from stream.step()
