"""One rollout step: lines 3 to 8 of the paper's Algorithm 1.

Prompts go to the engine, completions to the verifier as they end, groups to dynamic sampling in submission order, until
the batch is full or the step's allowance is spent.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dapo_lit.data.order import ProblemOrder
from dapo_lit.data.problem import Problem
from dapo_lit.rewards.pool import Reference, Verifier
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.dynamic_sampling import KeepRate, accept, groups_to_request, sampling_metrics
from dapo_lit.rollout.engine import RolloutEngine, SampleRequest, Sampling
from dapo_lit.rollout.ranks import Ranks
from dapo_lit.rollout.records import Completion, Group, Sample, SampleKey


class StopRequestedError(Exception):
    """Raised between samples when the run was asked to stop; the step is given up and its state restored."""


class ExhaustedError(RuntimeError):
    """max_rounds are spent, the batch is not full, and the config asks for an error."""


@dataclass(frozen=True)
class CollectionRules:
    """The switches of a rollout step as plain values."""

    num_prompts: int
    samples_per_prompt: int
    filter_unmixed: bool
    max_rounds: int
    on_exhausted: Literal["error", "train_smaller", "top_up"]
    carry_finished: bool
    request_groups: int | None = None
    """Groups submitted at once; None: as many as the keep rate asks for."""
    max_groups: int | None = None
    """No more groups than this are generated in a step; None: what max_rounds allow."""


@dataclass(frozen=True)
class Prompt:
    """A problem and its prompt as token ids, template applied."""

    problem: Problem
    ids: tuple[int, ...]


RewardFunction = Callable[[Score, int, bool], tuple[float, float]]
"""(score, response tokens, truncated) -> (length penalty as computed, shaped reward)."""


@dataclass
class CollectedStep:
    """What a rollout step brings: the groups to train on, all that were generated, and the price."""

    step: int
    policy_version: int
    accepted: list[Group]
    generated: list[Group]
    metrics: dict[str, float]


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
    keep_rate: KeepRate = field(default_factory=KeepRate)
    carried: list[Group] = field(default_factory=list)
    ranks: Ranks = field(default_factory=Ranks)
    """Who generates which of a round's groups; all ranks end a round with all of them."""

    def collect(self, step: int, policy_version: int) -> CollectedStep:
        """Collects step `step` with the weights the engine holds.

        Raises:
            StopRequestedError: a stop was asked for; order, keep rate and carry-over are as before the call.
            ExhaustedError: with on_exhausted=error, when max_rounds are spent.
        """
        before = self.state_dict()
        try:
            return self._collect(step, policy_version)
        except StopRequestedError:
            self.load_state_dict(before)
            raise

    def _collect(self, step: int, policy_version: int) -> CollectedStep:
        rules, generated, seconds = self.rules, list[Group](), {"generate": 0.0, "verify": 0.0}
        attempts: Counter[str] = Counter()
        carried_in, self.carried = self.carried, []
        kept = list(carried_in)
        allowance = rules.max_rounds * rules.num_prompts if rules.filter_unmixed else rules.num_prompts
        allowance = min(allowance, rules.max_groups or allowance)
        while len(kept) < rules.num_prompts and len(generated) < allowance:
            wanted = groups_to_request(
                rules.num_prompts - len(kept),
                self.keep_rate.value if rules.filter_unmixed else 1.0,
                allowance - len(generated),
            )
            if rules.request_groups is not None and rules.filter_unmixed:
                wanted = min(rules.request_groups, allowance - len(generated))
            groups = self._submit(wanted, step, len(generated), attempts)
            self._generate(groups, step, seconds)
            generated += groups
            mixed = [g for g in groups if g.mixed]
            self.keep_rate.update(len(mixed), len(groups))
            kept += mixed if rules.filter_unmixed else groups
        accepted, surplus = accept(kept, rules.num_prompts)
        if len(accepted) < rules.num_prompts:
            accepted = self._fill(accepted, generated, step)
        if rules.carry_finished:
            self.carried = surplus
        self.keep_rate.end_step()
        metrics = sampling_metrics(generated, accepted, self.carried, rules.num_prompts, rules.filter_unmixed)
        metrics |= {"time/generate_s": seconds["generate"], "time/verify_s": seconds["verify"]}
        return CollectedStep(step, policy_version, accepted, generated, metrics)

    def _submit(self, wanted: int, step: int, first_index: int, attempts: Counter[str]) -> list[Group]:
        groups = []
        for offset, position in enumerate(self.order.next(wanted)):
            prompt = self.prompts[position]
            attempt = attempts[prompt.problem.id]
            attempts[prompt.problem.id] += 1
            groups.append(Group(step, first_index + offset, prompt.problem, attempt, prompt.ids))
        return groups

    def _generate(self, groups: Sequence[Group], step: int, seconds: dict[str, float]) -> None:
        """Samples and scores every completion of `groups`, in place, this rank its own and the others theirs."""
        own = [groups[position] for position in self.ranks.own(groups)]
        requests = [
            SampleRequest(SampleKey(step, g.problem.id, g.attempt, i), g.prompt_ids)
            for g in own
            for i in range(self.rules.samples_per_prompt)
        ]
        references = {g.problem.id: _reference(g.problem) for g in own}
        texts: dict[SampleKey, tuple[Sample, str]] = {}
        scores: list[tuple[Any, Score]] = []
        started = time.perf_counter()
        for sample in self.engine.generate(requests, self.sampling):
            arrived = time.perf_counter()
            seconds["generate"] += arrived - started
            if self.ranks.size == 1 and self.stop_requested():
                raise StopRequestedError
            text = self.decode(sample.response_ids)
            texts[sample.key] = (sample, text)
            self.verifier.submit(sample.key, references[sample.key.problem_id], text)
            scores += self.verifier.collect()
            started = time.perf_counter()
            seconds["verify"] += started - arrived
        scores += self.verifier.drain()
        seconds["verify"] += time.perf_counter() - started
        completions = {key: self._completion(*texts[key], score) for key, score in scores}
        for group in own:
            group.completions = [
                completions[SampleKey(step, group.problem.id, group.attempt, i)]
                for i in range(self.rules.samples_per_prompt)
            ]
        # All ranks give up the same round, or none.
        if self.ranks.size > 1 and any(self.ranks.gather(self.stop_requested())):
            raise StopRequestedError
        self.ranks.exchange(groups)

    def _completion(self, sample: Sample, text: str, score: Score) -> Completion:
        penalty, shaped = self.reward(score, len(sample.response_ids), not sample.finished)
        return Completion(sample, text, score, score.value, penalty, shaped)

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
            "carried": list(self.carried),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.load_state_dict(state["order"])
        self.keep_rate = KeepRate(*state["keep_rate"])
        self.carried = list(state["carried"])


def _reference(problem: Problem) -> Reference:
    return Reference(problem_id=problem.id, answer=problem.answer, problem=problem.problem, meta=problem.meta)
