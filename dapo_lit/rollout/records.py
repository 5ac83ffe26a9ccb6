"""What flows through one rollout step: samples, completions and groups."""

from dataclasses import dataclass, field

from dapo_lit.data.problem import Problem
from dapo_lit.engines.samples import Sample
from dapo_lit.rewards.score import Score


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
