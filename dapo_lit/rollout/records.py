"""The records of one rollout step: prompts, completions, groups, and the collected step."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import NO_TOKENS, ArrayRecord, PartialSample, Sample, SampleKey, SampleRequest, TokenIds
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.dynamic_sampling import CollectionRules, keeps


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
    length_penalty: float = math.nan
    """DAPO Eq. 13 as computed, applied or not; zero or negative. NaN until the group is whole."""
    reward_shaped: float = math.nan
    """The reward that advantages are computed from, those of single turns included. NaN until the group is whole: other
    verdicts may decide it."""
    advantage: float | None = None
    """Mean over the tokens, which all have the same by Eq. 9; None for a completion that is not trained on."""

    @property
    def correct(self) -> bool:
        """The rule's verdict. Metrics use it; so does dynamic sampling, unless filter_on=shaped_reward."""
        return self.score.correct

    @property
    def truncated(self) -> bool:
        return not self.sample.finished

    @property
    def num_tokens(self) -> int:
        return len(self.sample.response_ids)

    @property
    def turn_reward(self) -> float:
        """Sum of what an environment gave for single turns."""
        return sum(self.sample.turn_rewards)


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

    A missing completion is left out, and its group is kept. With P(missing | y) = m(y), each completion is weighted by
    1 - m(y) in expectation. Dropping the group keeps that bias and also favours problems with few missing verdicts, the
    more so the larger G is.
    """

    @property
    def comparable(self) -> bool:
        """False for a group that lost so many verdicts that there is nothing to compare: it is not trained on."""
        # One completion alone has itself as baseline: advantage 0 by construction. A group of one (G = 1) is meant so.
        return len(self.completions) >= min(2, len(self.completions) + len(self.missing))

    @property
    def num_correct(self) -> int:
        return sum(c.correct for c in self.completions)

    @property
    def mixed(self) -> bool:
        """DAPO Eq. 11: 0 < number correct < G."""
        # Raw verdicts: with a length penalty in it, groups that are all wrong would pass (their short answers would be
        # reinforced).
        return 0 < self.num_correct < len(self.completions)

    @property
    def equal_rewards(self) -> bool:
        """True if all shaped rewards are equal, up to rounding: the group's advantages are then 0.

        A mixed group may be one: under the hard punishment, if its only right answer was truncated.
        """
        rewards = [c.reward_shaped for c in self.completions]
        # A standard deviation of rounding errors would turn equal rewards into advantages of order 1.
        return not rewards or math.isclose(min(rewards), max(rewards))

    def passes(self, rules: CollectionRules) -> bool:
        """True if dynamic sampling keeps the group."""
        return keeps(rules, self.num_correct, len(self.completions), equal_rewards=self.equal_rewards)


@dataclass
class OpenGroup:
    """A submitted group with the samples it has so far. A checkpoint holds it, and collection continues from there."""

    group: Group
    """Its completions are empty until all of them are scored."""
    position: int
    """Position of the problem among the run's prompts."""
    num_samples: int
    scored: dict[int, Completion] = field(default_factory=dict)
    """By sample index."""
    partial: dict[int, PartialSample | Sample] = field(default_factory=dict)
    """Interrupted samples, by sample index; a Sample has ended and has no verdict, as its group is asked for as a
    whole."""
    carried: bool = False
    """Submitted in an earlier step."""
    ended_earlier: bool = False
    """All of its samples ended before this step."""

    @property
    def finished(self) -> bool:
        return len(self.scored) == self.num_samples

    @property
    def num_tokens(self) -> int:
        """Response tokens so far."""
        ended = sum(c.num_tokens for c in self.scored.values())
        return ended + sum(len(p.response_ids) for p in self.partial.values())

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest weights that sampled any of its tokens; None: there is no token yet."""
        runs = [c.sample.versions for c in self.scored.values()] + [p.versions for p in self.partial.values()]
        # The first run of each sample is its oldest, as versions only rise.
        return min((versions[0][0] for versions in runs if versions), default=None)

    def key(self, index: int) -> SampleKey:
        return SampleKey(self.group.step, self.group.problem.id, self.group.attempt, index)

    def copy(self) -> "OpenGroup":
        """An independent copy; the samples themselves are shared."""
        group = replace(self.group, completions=list(self.group.completions), missing=list(self.group.missing))
        return replace(self, group=group, scored=dict(self.scored), partial=dict(self.partial))

    def saved(self) -> "OpenGroup":
        """A copy for a checkpoint."""
        copy = self.copy()
        # The name only: statements are in the data, and a checkpoint should not hold a copy that may differ.
        copy.group.problem = copy.group.problem.stub
        return copy

    def requests(self) -> list[SampleRequest]:
        """For the samples that have not ended."""
        lacking = [(i, self.partial.get(i, NO_TOKENS)) for i in range(self.num_samples) if i not in self.scored]
        return [
            SampleRequest(self.key(i), self.group.prompt_ids, partial)
            for i, partial in lacking
            if isinstance(partial, PartialSample)
        ]

    @property
    def unscored(self) -> list[Sample]:
        """Those that have ended and have no verdict."""
        return [partial for partial in self.partial.values() if isinstance(partial, Sample)]


@dataclass
class CollectedStep:
    """The result of a rollout step: the groups to train on, those examined for them, and the cost."""

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
        """The groups behind `rollout/*`: those in `generated` that this step submitted.

        Carried-over groups are left out: they are a selection, since finished groups are only carried if mixed.
        """
        return [group for group in self.generated if group.step == self.step]

    def mapped(self, change: Callable[[Problem], Problem]) -> "CollectedStep":
        """A copy with `change` applied to the problems; a group that is in two lists still is."""
        lists = (self.accepted, self.generated, self.surplus)
        changed = {id(g): replace(g, problem=change(g.problem)) for groups in lists for g in groups}
        accepted, generated, surplus = ([changed[id(g)] for g in groups] for groups in lists)
        return replace(self, accepted=accepted, generated=generated, surplus=surplus)
