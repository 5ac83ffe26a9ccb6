"""What an engine returns: one sampled response, and the key that names it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SampleKey:
    """Names one sample of a run; with the seed it fixes the sample's noise, whatever the batch or the rank."""

    step: int
    problem_id: str
    attempt: int
    """How often the problem was submitted before in this step."""
    sample_index: int
    """Position in the group, 0 .. G-1."""


@dataclass(frozen=True)
class Begun:
    """The tokens of a response that was interrupted: what it goes on from."""

    response_ids: tuple[int, ...] = ()
    rollout_logprobs: tuple[float, ...] = ()
    """One a token, nats, of the weights that sampled it."""
    versions: tuple[int, ...] = ()
    """One a token: the weights that sampled it."""


NOT_BEGUN = Begun()


@dataclass(frozen=True)
class Sample:
    """One response as the engine returns it."""

    key: SampleKey
    response_ids: tuple[int, ...]
    """Sampled tokens, with the EOS token where one ended the response; at least 1, at most max_response_tokens."""
    rollout_logprobs: tuple[float, ...]
    """Log-prob (nats) of each token under the distribution it was drawn from: temperature, top-p, top-k applied."""
    finished: bool
    """Ended by an EOS token; False: cut off at the limit (truncated)."""
    policy_version: int
    """Weight version that sampled its last token, and all from `earlier_versions` on."""
    earlier_versions: tuple[int, ...] = ()
    """Weight versions of its first tokens, one a token, where it went on from a `Begun`."""

    @property
    def versions(self) -> tuple[int, ...]:
        """Weight version of each token."""
        return self.earlier_versions + (self.policy_version,) * (len(self.response_ids) - len(self.earlier_versions))
