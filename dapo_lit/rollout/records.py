"""What flows through one rollout step: prompts, completions, groups, and the collected step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from dapo_lit.data.problem import Problem
from dapo_lit.engines.samples import ArrayRecord, Sample, TokenIds
from dapo_lit.rewards.score import Score

FilterOn = Literal["correctness", "shaped_reward"]


@dataclass(frozen=True, eq=False)
class Prompt(ArrayRecord):
    """A problem and its prompt as token ids, template applied."""

    problem: Problem
    ids: TokenIds


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
        """The rule's verdict on the text: what metrics and, unless told otherwise, dynamic sampling go by."""
        return self.score.correct

    @property
    def truncated(self) -> bool:
        return not self.sample.finished

    @property
    def num_tokens(self) -> int:
        return len(self.sample.response_ids)


@dataclass(eq=False)
class Group(ArrayRecord):
    """The G completions of one submission of a problem."""

    step: int
    """Rollout step it was submitted in."""
    index: int
    """Submission number within that step: acceptance follows (step, index)."""
    problem: Problem
    attempt: int
    prompt_ids: TokenIds
    completions: list[Completion] = field(default_factory=list)
    """Those with a verdict: what statistics, advantages and the loss are taken over."""
    missing: list[Completion] = field(default_factory=list)
    """Those whose verification was late or failed.

    A missing completion is left out, and its group is kept: with a chance m(y) that the verdict on y is missing, each
    completion then counts 1 - m(y) of what it should. Dropping its group would leave that as it is, and besides weigh
    the problem by the chance that none of G verdicts is missing: a selection of problems that grows with G.
    """

    @property
    def comparable(self) -> bool:
        """False for a group that lost so many verdicts that there is nothing to compare: it is not trained on."""
        return len(self.completions) >= min(2, len(self.completions) + len(self.missing))

    @property
    def num_correct(self) -> int:
        return sum(c.correct for c in self.completions)

    @property
    def mixed(self) -> bool:
        """DAPO Eq. 11: 0 < number correct < G."""
        return 0 < self.num_correct < len(self.completions)

    @property
    def equal_rewards(self) -> bool:
        """Whether all shaped rewards are equal, up to rounding: the group's advantages are then 0.

        A mixed group may be one: under the hard punishment, if its only right answer was truncated.
        """
        rewards = [c.reward_shaped for c in self.completions]
        return not rewards or math.isclose(min(rewards), max(rewards))

    def passes(self, filter_on: FilterOn) -> bool:
        """Whether dynamic sampling keeps the group. DAPO Eq. 11 goes by correctness; a filter on the shaped reward lets
        a group pass whose answers are all wrong and differ in length."""
        return self.mixed if filter_on == "correctness" else not self.equal_rewards


IMPOSSIBLE = -60.0
"""Log-probability (nats) below which identical samples are taken for a fault: one group in 10^26."""


class IdenticalSamplesError(RuntimeError):
    """The samples of a group are one sample: they were drawn from the same noise."""


def check_independent(samples: Sequence[Sample]) -> None:
    """Raises IdenticalSamplesError where independent samples would hardly be identical.

    If the first response has probability p, the G - 1 others equal it with probability p^(G - 1). A group of a nearly
    certain answer is identical by right.
    """
    first = samples[0]
    if len(samples) < 2 or any(not np.array_equal(s.response_ids, first.response_ids) for s in samples[1:]):
        return
    chance = (len(samples) - 1) * float(np.sum(first.rollout_logprobs, dtype=np.float64))
    if chance < IMPOSSIBLE:
        raise IdenticalSamplesError(
            f"all {len(samples)} responses to {first.key.problem_id} in step {first.key.step} are identical, which "
            f"independent samples would be with log-probability {chance:.0f}: the engine gives them the same noise"
        )


@dataclass
class CollectedStep:
    """The result of a rollout step: the groups to train on, those examined for them, and the price."""

    step: int
    policy_version: int
    """Version of the weights that train on it."""
    accepted: list[Group]
    generated: list[Group]
    """Groups up to the last accepted one, in order of submission. Later groups were submitted ahead of need; those of
    them that ended in time would favour short answers."""
    metrics: dict[str, float | None]
    surplus: list[Group] = field(default_factory=list)
    """Finished groups after the last accepted one that are not carried over."""
    tokens_generated: int = 0
    """All response tokens sampled in this step, those of unfinished and surplus groups included."""

    @property
    def counted(self) -> list[Group]:
        """What `rollout/*` is taken over: the groups in `generated` that this step submitted.

        Carried-over groups are left out: they are a selection, since finished groups are only carried if mixed.
        """
        return [group for group in self.generated if group.step == self.step]

    def mapped(self, change: Callable[[Problem], Problem]) -> "CollectedStep":
        """A copy with `change` applied to the problems; a group that is in two lists still is."""
        lists = (self.accepted, self.generated, self.surplus)
        changed = {id(g): replace(g, problem=change(g.problem)) for groups in lists for g in groups}
        accepted, generated, surplus = ([changed[id(g)] for g in groups] for groups in lists)
        return replace(self, accepted=accepted, generated=generated, surplus=surplus)
