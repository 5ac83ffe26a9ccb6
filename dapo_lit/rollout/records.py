"""What flows through one rollout step: samples, completions and groups."""

from dataclasses import dataclass, field

from dapo_lit.data.problem import Problem
from dapo_lit.rewards.score import Score


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


@dataclass
class Completion:
    """A sample with its text, its verdict and its reward."""

    sample: Sample
    text: str
    score: Score
    reward: float
    """DAPO Eq. 7: the rule's value, in every arm of a study."""
    length_penalty: float
    """DAPO Eq. 13 as computed, applied or not; zero or negative."""
    reward_shaped: float
    """What the advantages see."""
    advantage: float | None = None
    """Mean over the tokens, which all have the same by Eq. 9; None for a completion that is not trained on."""

    @property
    def correct(self) -> bool:
        """The rule's verdict on the text: what metrics and dynamic sampling go by."""
        return self.score.correct

    @property
    def truncated(self) -> bool:
        return not self.sample.finished

    @property
    def num_tokens(self) -> int:
        return len(self.sample.response_ids)


@dataclass
class Group:
    """The G completions of one submission of a problem."""

    step: int
    """Rollout step it was submitted in."""
    index: int
    """Submission number within that step: acceptance follows (step, index)."""
    problem: Problem
    attempt: int
    prompt_ids: tuple[int, ...]
    completions: list[Completion] = field(default_factory=list)

    @property
    def num_correct(self) -> int:
        return sum(c.correct for c in self.completions)

    @property
    def mixed(self) -> bool:
        """DAPO Eq. 11: 0 < number correct < G."""
        return 0 < self.num_correct < len(self.completions)
