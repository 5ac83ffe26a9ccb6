"""Dynamic sampling (DAPO 3.2, Eq. 11): which groups are trained on, and when to ask for more.

A step accepts the first `num_prompts` mixed groups in the order of submission, never in the order of completion: short
answers end first, and a batch filled by whoever ends first would favour them. Acceptance depends neither on timing
nor on how many groups are in flight; those affect only the cost. Engines, tokens and text do not occur here, so that
the simulation in benchmarks/dynamic_sampling.py runs on the same classes.
"""

import math
from dataclasses import dataclass
from typing import Literal

RELIABLE_GROUPS = 64
"""The keep rate decides how many groups are under way once this many (or half a batch, if less) have ended."""


@dataclass
class KeepRate:
    """Running estimate of the share of groups that are mixed.

    Counts are halved at the end of each step, so that the estimate follows the policy.
    """

    kept: float = 0.0
    generated: float = 0.0

    @property
    def value(self) -> float:
        """1 while nothing is known. One kept group is added to the counts, so that the estimate is never 0."""
        # Laplace's rule with one success: after many groups without a mixed one the rate stays positive, and asks for
        # many.
        return (self.kept + 1) / (self.generated + 1)

    def update(self, kept: int, generated: int) -> None:
        self.kept += kept
        self.generated += generated

    def end_step(self) -> None:
        self.kept /= 2
        self.generated /= 2


def groups_in_flight(missing: int, keep_rate: float, margin: float) -> int:
    """The smallest number u of groups whose mixed ones are `missing` or more with confidence.

    `u * k - margin * sqrt(u * k * (1 - k)) >= missing`: the mean of the binomial less `margin` of its standard
    deviations, k being the keep rate.

    >>> groups_in_flight(missing=512, keep_rate=0.6, margin=0.0), groups_in_flight(512, 0.6, 1.0)
    (854, 878)
    """
    if missing <= 0:
        return 0
    spread = margin * math.sqrt(1 - keep_rate)
    # The bound is quadratic in sqrt(u k).
    root = (spread + math.sqrt(spread**2 + 4 * missing)) / 2  # of u * k
    return math.ceil(root**2 / keep_rate - 1e-9)


@dataclass(frozen=True)
class CollectionRules:
    """The switches of a rollout step as plain values."""

    num_prompts: int
    """Groups wanted."""
    max_rounds: int
    """Groups submitted in a step are at most this many times `num_prompts`."""
    samples_per_prompt: int = 1
    dynamic_sampling: bool = True
    """Only mixed groups are kept; off: every group is, and one round is submitted."""
    on_exhausted: Literal["error", "train_smaller", "top_up", "replay"] = "error"
    carry_over: Literal["none", "finished", "all"] = "none"
    """Groups after the last accepted one that go into the next step: none, the finished mixed ones, or those and all
    unfinished ones. Problems whose group is dropped unfinished, and under `none` all of them, are asked again first.
    """
    filter_on: Literal["correctness", "shaped_reward"] = "correctness"
    """The quantity that must differ within a group that is kept."""
    pass_rate_margin: float = 0.0
    """The share of right answers in a group that is kept lies between this and 1 minus this."""
    max_staleness: int = 2
    """A group is neither carried over nor replayed once any of its tokens is more than this many steps old."""
    margin: float = 1.0
    """Standard deviations in `groups_in_flight`."""
    window: float = 4.0
    """Submission runs at most this many times `num_prompts` groups ahead of the oldest unfinished one. It never decides
    acceptance."""
    request_groups: int | None = None
    """Not None: batches of this many groups, each waited for, whatever the keep rate (as in the authors' script)."""
    max_groups: int | None = None
    """No more groups than this are submitted in a step; None: what max_rounds allow."""

    @property
    def allowance(self) -> int:
        """Groups that may be submitted in a step; those carried over from an earlier one do not count."""
        # Without dynamic sampling every group is kept, so more rounds would be more than the batch.
        allowance = (self.max_rounds if self.dynamic_sampling else 1) * self.num_prompts
        return min(allowance, self.max_groups or allowance)


def keeps(rules: CollectionRules, num_correct: int, num_completions: int, *, equal_rewards: bool) -> bool:
    """True if dynamic sampling trains on a group of G completions with a verdict: DAPO Eq. 11, 0 < number correct < G.

    equal_rewards: all shaped rewards of the group are equal. A filter on these, instead of the verdicts, lets a group
        pass whose answers are all wrong and differ in length.

    >>> rules = CollectionRules(num_prompts=1, max_rounds=1)
    >>> [keeps(rules, correct, 4, equal_rewards=False) for correct in range(5)]
    [False, True, True, True, False]
    """
    # verl's filter_groups.metric=seq_reward; Eq. 11 counts correct answers.
    if rules.filter_on == "shaped_reward":
        return not equal_rewards
    margin = rules.pass_rate_margin * num_completions  # 0 in Eq. 11
    return margin < num_correct < num_completions - margin  # DAPO 3.2 dynamic sampling


class Admission:
    """The groups of one step by place, 0, 1, 2, ... in order of submission: which are in, and how many to ask for.

    >>> step = Admission(CollectionRules(num_prompts=1, max_rounds=4, margin=0.0), KeepRate())
    >>> first, second = step.submit(), step.submit()
    >>> step.resolve(second, mixed=True)
    >>> step.full, step.cut     # the first one may still be mixed, and is then accepted instead
    (False, 1)
    >>> step.resolve(first, mixed=False)
    >>> step.full, step.accepted
    (True, [1])
    """

    def __init__(self, rules: CollectionRules, keep_rate: KeepRate) -> None:
        self.rules = rules
        self._outcomes: list[bool | None] = []  # None: unfinished
        self._rate = KeepRate(keep_rate.kept, keep_rate.generated)
        self._submitted = 0
        self._num_carried = 0  # they have the first places
        self._open = 0
        # End of the batch that is waited for, where groups are requested in batches.
        self._batch_end = 0
        self.front = 0
        """Place of the oldest unfinished group."""
        self.kept = 0
        """Finished groups that are kept, in whatever place."""
        self.cut: int | None = None
        """No group beyond this place can still be accepted, since `num_prompts` up to it are kept. None: fewer are."""

    def submit(self, carried: bool = False) -> int:
        """Adds the next group and returns its place."""
        self._submitted += not carried
        self._num_carried += carried
        self._open += 1
        self._outcomes.append(None)
        return len(self._outcomes) - 1

    def resolve(self, place: int, mixed: bool) -> None:
        """The group in `place` has ended."""
        if self._outcomes[place] is not None:
            raise ValueError(f"the group in place {place} has already ended")
        # Off: GRPO, which trains on every group and gets advantage 0 from unmixed ones.
        keeps = mixed or not self.rules.dynamic_sampling
        self._outcomes[place] = keeps
        self._open -= 1
        # Carried groups were kept because they are mixed: they would raise the rate.
        if place >= self._num_carried:
            self._rate.update(int(keeps), 1)
        self.kept += keeps
        # The cut moves only to the left from here on: an earlier group that turns out mixed pushes the last one out.
        if keeps and self.kept == self.rules.num_prompts:
            self.cut = self._last_kept(len(self._outcomes))
        elif keeps and self.cut is not None and place < self.cut:
            # It takes the place of the last one.
            self.cut = self._last_kept(self.cut)
        # The oldest unfinished group bounds everything: until it ends, what comes after it cannot be accepted for good.
        while self.front < len(self._outcomes) and self._outcomes[self.front] is not None:
            self.front += 1

    def _last_kept(self, below: int) -> int:
        return next(place for place in range(below - 1, -1, -1) if self._outcomes[place])

    @property
    def wanted(self) -> int:
        """Groups to submit now."""
        rules, missing = self.rules, self.rules.num_prompts - self.kept
        if missing <= 0:
            return 0
        if rules.request_groups is not None:
            return self._rest_of_batch(rules.request_groups)
        in_flight = groups_in_flight(missing, self._rate.value, rules.margin) if rules.dynamic_sampling else missing
        # Early in a run the rate is a guess of 1 or of a few groups; asking for more than a batch on it wastes a batch.
        if self._rate.generated < min(RELIABLE_GROUPS, rules.num_prompts / 2):
            in_flight = min(in_flight, rules.num_prompts)
        ahead = len(self._outcomes) - self.front
        # One endless answer at the front would otherwise let submission run on through the whole allowance.
        window = max(1, round(rules.window * rules.num_prompts))
        return max(0, min(in_flight - self._open, rules.allowance - self._submitted, window - ahead))

    def _rest_of_batch(self, size: int) -> int:
        if not self._open and self._batch_end <= len(self._outcomes):
            self._batch_end = len(self._outcomes) + min(size, self.rules.allowance - self._submitted)
        return max(0, self._batch_end - len(self._outcomes))

    @property
    def num_ended(self) -> int:
        """Groups with all their verdicts."""
        return len(self._outcomes) - self._open

    @property
    def full(self) -> bool:
        """`num_prompts` groups are accepted, and none before them is unfinished."""
        if self.rules.request_groups is not None and self._open:
            return False
        # Not as soon as enough are kept: an unfinished group before the cut may be mixed, and it comes first. Taking
        # whoever ends first would fill batches with short answers.
        return self.cut is not None and self.front > self.cut

    @property
    def exhausted(self) -> bool:
        """Everything has ended and nothing more may be submitted, but the batch is not full."""
        return not self.full and self.front == len(self._outcomes) and self._submitted >= self.rules.allowance

    @property
    def num_examined(self) -> int:
        """Groups up to the last accepted one: what the step's statistics are taken over, whatever else was started."""
        return self.cut + 1 if self.full and self.cut is not None else len(self._outcomes)

    @property
    def counts(self) -> tuple[int, int]:
        """(accepted, examined) among the groups submitted in this step, for the keep rate.

        Carried groups would bias it: finished ones are only carried if they are mixed.
        """
        # Groups beyond the cut are left out: those of them that ended are the ones with short answers.
        examined = max(0, self.num_examined - self._num_carried)
        return sum(place >= self._num_carried for place in self.accepted), examined

    @property
    def accepted(self) -> list[int]:
        """Places of the kept groups among those examined."""
        return [place for place in range(self.num_examined) if self._outcomes[place]]
