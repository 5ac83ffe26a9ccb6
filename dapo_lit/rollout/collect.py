"""One rollout step: lines 3 to 8 of the paper's Algorithm 1.

Prompts go to the engine group by group, completions to the verifier as they end, groups to dynamic sampling in the
order of submission, until the batch is full or the step's allowance is spent (step_collection.py). What one step
leaves for the next is decided here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ablations.errors import DataError, UserError
from dapo_lit.rollout.dynamic_sampling import KeepRate
from dapo_lit.rollout.metrics import sampling_metrics
from dapo_lit.rollout.rank_sampling import CollectionSetup
from dapo_lit.rollout.records import CollectedStep, Group, OpenGroup
from dapo_lit.rollout.step_collection import StepCollection
from dapo_lit.seeds import epoch_permutation

SAME_DATA = "use the same data and filters, or start a new run with resume=false"


class ExhaustedError(UserError):
    """No group to learn from: max_rounds are spent, the batch is not full, and the config asks for an error; or a run
    has ended and had no such group."""


@dataclass
class ProblemOrder:
    """An endless iteration over the problems: a new permutation every epoch, and an exact position in it.

    The state is one integer, the same on every rank: a resumed run, also on another number of ranks, continues the same
    sequence of problems.

    >>> order = ProblemOrder(num_problems=3, seed=0)
    >>> sorted(order.next() for _ in range(3))
    [0, 1, 2]
    """

    num_problems: int
    seed: int
    position: int = 0
    """Problems returned since the start of the run, over all epochs."""
    _cached: tuple[int, list[int]] | None = field(default=None, init=False, repr=False, compare=False)

    def next(self) -> int:
        epoch, place = divmod(self.position, self.num_problems)
        if self._cached is None or self._cached[0] != epoch:
            self._cached = (epoch, epoch_permutation(self.num_problems, self.seed, epoch))
        # The whole state: an order that continues from this number gives the next problem.
        self.position += 1
        return self._cached[1][place]

    def state_dict(self) -> dict[str, int]:
        return {"num_problems": self.num_problems, "seed": self.seed, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where `state` was taken.

        Raises ValueError if the number of problems or the seed differs: the position would refer to other problems.
        """
        for name in ("num_problems", "seed"):
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"cannot continue the order of problems: {name} was {state[name]}, is now {getattr(self, name)}; "
                    "use the same data, filters and seed, or start a new run with resume=false"
                )
        self.position = state["position"]


@dataclass(kw_only=True)
class Collector:
    """Collects rollout steps.

    Its state (order, keep rate, carried and returned groups) is the same on every rank and part of a checkpoint.
    """

    setup: CollectionSetup
    order: ProblemOrder
    keep_rate: KeepRate = field(default_factory=KeepRate)
    carried: list[OpenGroup] = field(default_factory=list)
    """Groups that come first in the next step."""
    returned: list[int] = field(default_factory=list)
    """Positions of problems whose groups were dropped: asked again before the order goes on."""
    earlier: list[Group] = field(default_factory=list)
    """With on_exhausted=replay: mixed groups of earlier steps, the newest last."""

    def collect(self, step: int, policy_version: int) -> CollectedStep:
        """Collects step `step` with the weights in the engine; `policy_version` is that of the weights it will train.

        After an error the state is as before the call, so that a resumed run repeats the step. Raises
        StopRequestedError if a stop was asked for, ExhaustedError with on_exhausted=error when max_rounds are spent,
        and EngineError or LostSampleError where the engine fails.
        """
        # A copy at the start is cheaper than undoing: groups hold references, and their tokens are shared.
        before = self.state_dict()
        try:
            return self._collect(step, policy_version)
        except BaseException:
            # Ctrl-C too: what a run saves on its way out is the state after a whole step.
            self.load_state_dict(before)
            raise

    def _collect(self, step: int, policy_version: int) -> CollectedStep:
        carried, expired = self._take_carried(policy_version - self.setup.rules.max_staleness)
        collection = StepCollection(self.setup, step, carried, expired, self.keep_rate, self._next_position)
        collection.run()
        # Also where the batch is full: workers still hold samples of this step, which would arrive in the next one.
        collection.drain()
        # `examined` ends with the last accepted group. Later groups that happened to end are the short ones.
        accepted, generated = collection.accepted, [g.group for g in collection.examined]
        fresh = accepted
        if not collection.admission.full:
            # Fewer mixed groups than wanted within the allowance: what then is a choice of the config.
            accepted = self._fill(accepted, generated, step)
        if self.setup.rules.on_exhausted == "replay":
            # Those that the next step may replay.
            assert self.setup.engine.version is not None
            # Sampled ahead, groups are that much older when they are trained on.
            ahead = policy_version - self.setup.engine.version
            self.earlier = [g for g in self.earlier + fresh if step - g.step + ahead < self.setup.rules.max_staleness]
        # After metrics have no more use of the keep rate as it was, and before they report what was carried out.
        surplus = self._settle(collection)
        metrics = sampling_metrics(collection, accepted, self.carried, policy_version)
        metrics["sampling/keep_rate"] = self.keep_rate.value
        # Before anything is returned: if it fails, the state goes back.
        self.setup.engine.release_memory()
        metrics |= collection.costs()
        return CollectedStep(step, policy_version, accepted, generated, metrics, surplus, collection.tokens_generated)

    def _take_carried(self, oldest_version: int) -> tuple[list[OpenGroup], list[OpenGroup]]:
        """Takes the groups that an earlier step left: those that go on, and those with older tokens, which expire."""
        kept: list[OpenGroup] = []
        expired: list[OpenGroup] = []
        for group in self.carried:
            # Marked so that metrics count each sample in the step that paid for it.
            group.carried, group.ended_earlier = True, group.finished
            version = group.oldest_version
            (expired if version is not None and version < oldest_version else kept).append(group)
        self.carried = []
        # First in line: an expired problem was submitted earlier than any that the order would give.
        self.returned = [group.position for group in expired] + self.returned
        return kept, expired

    def _settle(self, collection: StepCollection) -> list[Group]:
        """Carries the groups after the last accepted one over or drops them; returns the finished dropped ones."""
        rules = self.setup.rules
        mode = rules.carry_over
        dropped: list[OpenGroup] = []
        self.carried = []
        for group in collection.leftover:
            # An unfinished group may still turn out unmixed, so carrying it is a bet; a finished one is known.
            keeps = (mode != "none" and group.group.passes(rules)) if group.finished else mode == "all"
            (self.carried if keeps else dropped).append(group)
        # Otherwise problems with long answers, which are dropped more often, would be trained on less.
        again = [g.position for g in dropped if mode == "none" or not g.finished]
        self.returned = again + self.returned
        self.keep_rate.update(*collection.admission.counts)
        # Halved at the end of a step: the policy changes, and an old rate asks for the wrong number of groups.
        self.keep_rate.end_step()
        return [g.group for g in dropped if g.finished]

    def _next_position(self) -> int:
        return self.returned.pop(0) if self.returned else self.order.next()

    def _fill(self, accepted: list[Group], generated: Sequence[Group], step: int) -> list[Group]:
        rules = self.setup.rules
        match rules.on_exhausted:
            case "error":
                raise ExhaustedError(
                    f"step {step}: {len(generated)} groups ({rules.max_rounds} rounds) gave {len(accepted)} mixed ones "
                    f"of {rules.num_prompts}; raise algorithm.dynamic_sampling.max_rounds, choose problems nearer the "
                    "policy's level, or set algorithm.dynamic_sampling.on_exhausted=train_smaller"
                )
            case "train_smaller":
                return accepted
            case "replay":
                # Newest first: the older a sample is, the further the policy has moved from what drew it.
                return (accepted + self.earlier[::-1])[: rules.num_prompts]
            case "top_up":
                # They keep the batch at its size. Their advantages are 0, and the mean over tokens falls; but a length
                # penalty sets rewards apart in groups that are all wrong too.
                unmixed = [g for g in generated if g.comparable and not g.passes(rules)]
                return accepted + unmixed[: rules.num_prompts - len(accepted)] if accepted else []

    def state_dict(self) -> dict[str, Any]:
        return {
            "order": self.order.state_dict(),
            "keep_rate": (self.keep_rate.kept, self.keep_rate.generated),
            "carried": [g.saved() for g in self.carried],
            "returned": list(self.returned),
            # Problems are in the data; a checkpoint has their names only.
            "earlier": [replace(g, problem=g.problem.stub) for g in self.earlier],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.load_state_dict(state["order"])
        self.keep_rate = KeepRate(*state["keep_rate"])
        self.carried = [self._restored(g) for g in state["carried"]]
        self.returned = list(state["returned"])
        earlier = state["earlier"]
        known = {prompt.problem.id: prompt.problem for prompt in self.setup.prompts} if earlier else {}
        if lost := [g.problem.id for g in earlier if g.problem.id not in known]:
            raise DataError(f"the checkpoint has responses to {lost[0]}, which the data lacks; {SAME_DATA}")
        self.earlier = [replace(g, problem=known[g.problem.id]) for g in earlier]

    def forget_verdicts(self) -> None:
        """The next step scores what is carried over again; groups that were kept to be trained on again are dropped.

        For verdicts of another rule: in one group with new ones they would make equal answers differ.
        """
        for group in self.carried:
            group.partial |= {index: completion.sample.paid for index, completion in group.scored.items()}
            group.scored, group.group.completions, group.group.missing = {}, [], []
        self.earlier = []

    def _restored(self, saved: OpenGroup) -> OpenGroup:
        """A copy of a saved group with its problem. Raises DataError if the data has another one in its place."""
        problem, name = self.setup.prompts[saved.position].problem, saved.group.problem.id
        if problem.id != name:
            raise DataError(
                f"the checkpoint has unfinished responses to {name}, and the data has {problem.id} there; {SAME_DATA}"
            )
        # The state may be loaded twice (after a failed step), and collection changes groups in place.
        copy = saved.copy()
        copy.group.problem = problem
        return copy
