"""One rollout step: lines 3 to 8 of the paper's Algorithm 1.

Prompts go to the engine group by group, completions to the verifier as they end, groups to dynamic sampling in the
order of submission, until the batch is full or the step's allowance is spent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dapo_lit.data.order import ProblemOrder
from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import RolloutEngine, Sampling
from dapo_lit.engines.restarting import EngineFailedError
from dapo_lit.ranks import Ranks
from dapo_lit.rewards.pool import Verifier
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.accumulation import Accumulation, OpenGroup, sampling_metrics
from dapo_lit.rollout.dynamic_sampling import AdmissionRules, KeepRate
from dapo_lit.rollout.flight import Flight, LostSampleError, StopRequestedError
from dapo_lit.rollout.records import Group


class ExhaustedError(RuntimeError):
    """max_rounds are spent, the batch is not full, and the config asks for an error."""


@dataclass(frozen=True)
class CollectionRules:
    """The switches of a rollout step as plain values."""

    num_prompts: int
    samples_per_prompt: int
    dynamic_sampling: bool
    max_rounds: int
    on_exhausted: Literal["error", "train_smaller", "top_up"]
    carry_over: Literal["none", "finished", "all"] = "none"
    """Groups behind the last accepted one: dropped, or those that are finished (mixed), or all go into the next step.

    Problems whose group is dropped unfinished, and under `none` all of them, are asked again first in the next step.
    """
    max_staleness: int = 2
    """A group with a token that more updates of the weights lie behind than this is dropped."""
    margin: float = 1.0
    """Standard deviations of the number of mixed groups that are asked for in addition."""
    window: float = 4.0
    """Submission runs at most so many times `num_prompts` groups ahead of the oldest unfinished one."""

    request_groups: int | None = None
    """Groups submitted at once and waited for, as a fixed multiple of the batch; None: streaming."""
    max_groups: int | None = None
    """No more groups than this are generated in a step; None: what max_rounds allow."""

    @property
    def admission(self) -> AdmissionRules:
        allowance = (self.max_rounds if self.dynamic_sampling else 1) * self.num_prompts
        return AdmissionRules(
            num_prompts=self.num_prompts,
            allowance=min(allowance, self.max_groups or allowance),
            dynamic_sampling=self.dynamic_sampling,
            margin=self.margin,
            window=max(1, round(self.window * self.num_prompts)),
            request_groups=self.request_groups if self.dynamic_sampling else None,
        )


@dataclass(frozen=True)
class Prompt:
    """A problem and its prompt as token ids, template applied."""

    problem: Problem
    ids: tuple[int, ...]


RewardFunction = Callable[[Score, int, bool], tuple[float, float]]
"""(score, response tokens, truncated) -> (length penalty as computed, shaped reward)."""


@dataclass
class Interrupted:
    """The accumulation of a step that was not finished."""

    groups: list[OpenGroup]
    """In order of submission."""
    tokens_generated: int
    expired: Sequence[OpenGroup] = ()

    def copy(self) -> "Interrupted":
        """Goes on by itself: what happens to one does not show in the other."""
        return Interrupted([g.copy() for g in self.groups], self.tokens_generated, [g.copy() for g in self.expired])


@dataclass
class CollectedStep:
    """What a rollout step brings: the groups to train on, those examined for them, and the price."""

    step: int
    policy_version: int
    """Of the weights that train on it."""
    accepted: list[Group]
    generated: list[Group]
    """Groups up to the last accepted one, in order of submission. Those behind it were asked for ahead; the ones among
    them that ended would favour short answers."""
    metrics: dict[str, float | None]
    surplus: list[Group] = field(default_factory=list)
    """Groups behind the last accepted one that ended and are not carried over."""
    tokens_generated: int = 0
    """All response tokens sampled in this step, of unfinished and surplus groups too."""

    @property
    def counted(self) -> list[Group]:
        """What `rollout/*` is taken over: of `generated`, the groups that this step submitted.

        What was carried in lay behind the last accepted group of its own step, and was chosen: what ended beside it
        without being mixed is gone.
        """
        return [group for group in self.generated if group.step == self.step]


@dataclass
class Collector:
    """Collects rollout steps; its state (order, keep rate, carry-over) is rank-free and part of a checkpoint."""

    prompts: Sequence[Prompt]
    order: ProblemOrder
    engine: RolloutEngine
    verifier: Verifier
    decode: Callable[[Sequence[int]], str]
    reward: RewardFunction
    rules: CollectionRules
    sampling: Sampling
    stop_requested: Callable[[], bool] = lambda: False
    stall_s: float = 600.0
    """A message names the prompts waited for when no sample has ended for so many seconds."""
    progress_s: float | None = None
    """A line says how far the step is, every so many seconds; None: never."""
    keep_rate: KeepRate = field(default_factory=KeepRate)
    carried: list[OpenGroup] = field(default_factory=list)
    """Groups that come first in the next step."""
    returned: list[int] = field(default_factory=list)
    """Positions of problems whose groups were dropped: asked again before the order goes on."""
    interrupted: Interrupted | None = None
    """What a step had when it was interrupted; None: none was."""
    ranks: Ranks = field(default_factory=Ranks)
    """Who generates which of a round's groups; all ranks end a round with all of them."""

    def collect(self, step: int, policy_version: int) -> CollectedStep:
        """Collects step `step` with the weights the engine holds; `policy_version` is that of those that train on it.

        Raises:
            StopRequestedError: a stop was asked for. With an engine that is reproducible the state is as before the
                call, and the step begins anew; else what was sampled is part of the state, and the step goes on.
            ExhaustedError: with on_exhausted=error, when max_rounds are spent.
            LostSampleError: the engine forgot samples.
            EngineFailedError: the engine failed twice. After either the state is as after a stop; what the engine had
                under way is sampled anew.
        """
        before = self.state_dict()
        try:
            return self._collect(step, policy_version)
        except BaseException:  # of Ctrl-C too: what a run saves on its way out is the state of a whole step
            if self.interrupted is None:
                self.load_state_dict(before)
            raise

    def _collect(self, step: int, policy_version: int) -> CollectedStep:
        flight = Flight(self, step, policy_version)
        try:
            flight.run()
        except (StopRequestedError, EngineFailedError, LostSampleError) as error:
            # Several ranks have the same groups where they stop, and not where an engine fails.
            stopped = isinstance(error, StopRequestedError)
            if not self.engine.reproducible and (stopped or self.ranks.size == 1):
                if stopped:
                    flight.land()
                else:  # an engine that is gone gives nothing back
                    flight.take_verdicts()
                groups = flight.groups
                self.interrupted = Interrupted(groups.groups, groups.tokens_generated, groups.expired)
            raise
        flight.land()
        groups = flight.groups
        accepted = groups.accepted
        if not groups.admission.full:
            accepted = self._fill(accepted, [g.group for g in groups.examined], step)
        surplus = self._settle(groups)
        metrics = sampling_metrics(groups, accepted, self.carried, policy_version)
        metrics["sampling/keep_rate"] = self.keep_rate.value
        self.engine.rest()  # here, so that the state goes back if it fails
        return CollectedStep(
            step,
            policy_version,
            accepted,
            [g.group for g in groups.examined],
            metrics | flight.timings(),
            surplus,
            groups.tokens_generated,
        )

    def _settle(self, groups: Accumulation) -> list[Group]:
        """What becomes of the groups behind the last accepted one; returns the finished ones that are dropped."""
        mode, leftover = self.rules.carry_over, groups.leftover
        self.carried = [
            g
            for g in leftover
            if (mode == "all" and not g.finished) or (mode != "none" and g.finished and g.group.mixed)
        ]
        kept = {id(g) for g in self.carried}
        dropped = [g for g in leftover if id(g) not in kept]
        again = [g.position for g in dropped if mode == "none" or not g.finished]
        self.returned = again + self.returned
        self.keep_rate.update(*groups.admission.counts)
        self.keep_rate.end_step()
        return [g.group for g in dropped if g.finished]

    def next_position(self) -> int:
        return self.returned.pop(0) if self.returned else self.order.next(1)[0]

    def _fill(self, accepted: list[Group], generated: Sequence[Group], step: int) -> list[Group]:
        rules = self.rules
        match rules.on_exhausted:
            case "error":
                raise ExhaustedError(
                    f"step {step}: {len(generated)} groups ({rules.max_rounds} rounds) gave {len(accepted)} mixed ones "
                    f"of {rules.num_prompts}; raise algorithm.dynamic_sampling.max_rounds, choose problems nearer the "
                    "policy's level, or set algorithm.dynamic_sampling.on_exhausted=train_smaller"
                )
            case "train_smaller":
                return accepted
            case "top_up":
                unmixed = [g for g in generated if not g.mixed]
                return accepted + unmixed[: rules.num_prompts - len(accepted)] if accepted else []

    def state_dict(self) -> dict[str, Any]:
        return {
            "order": self.order.state_dict(),
            "keep_rate": (self.keep_rate.kept, self.keep_rate.generated),
            "carried": [g.copy() for g in self.carried],
            "returned": list(self.returned),
            "interrupted": self.interrupted and self.interrupted.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.load_state_dict(state["order"])
        self.keep_rate = KeepRate(*state["keep_rate"])
        self.carried = [g.copy() for g in state["carried"]]
        self.returned = list(state["returned"])
        self.interrupted = state["interrupted"] and state["interrupted"].copy()
