"""Samples of one rollout step, from submission to verdict, on one rank or several.

One rank streams: groups are submitted as long as more are wanted, samples are verified as they end, and what can no
longer be accepted is withdrawn.

Several ranks work in rounds. Every rank walks the same submission order and generates its own share of the groups;
after each round the completions are exchanged, so that every rank holds every group with its scores. Everything that
follows (keep rate, acceptance, advantages, metrics, carry-over) is then the same computation on the same data: no rank
has a quota, and no decision can differ between ranks. Scores are exchanged rather than computed twice, because a
verifier's deadline may pass on one rank and not on another.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import RolloutEngine, SampleStream, Sampling
from dapo_lit.engines.samples import Sample, SampleKey
from dapo_lit.ranks import Ranks
from dapo_lit.rewards.pool import Reference, Verifier
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.dynamic_sampling import CollectionRules, KeepRate
from dapo_lit.rollout.open_groups import OpenGroup, OpenGroups
from dapo_lit.rollout.progress import Progress, listed
from dapo_lit.rollout.records import Completion, Group, Prompt

TAIL_FROM = 0.9
"""`time/tail_s` starts when this share of the batch is there."""

RewardFunction = Callable[[Score, int, bool], tuple[float, float]]
"""(score, response tokens, truncated) -> (length penalty as computed, shaped reward)."""


class StopRequestedError(Exception):
    """Raised between samples when the run was asked to stop; a resumed run continues or repeats the step."""


class LostSampleError(RuntimeError):
    """The engine has nothing under way, but samples are missing."""


@dataclass(kw_only=True)
class CollectionSetup:
    """What every step of a run is collected with."""

    prompts: Sequence[Prompt]
    engine: RolloutEngine
    verifier: Verifier
    decode: Callable[[Sequence[int]], str]
    reward: RewardFunction
    rules: CollectionRules
    sampling: Sampling
    stop_requested: Callable[[], bool] = lambda: False
    stall_s: float = 600.0
    """The prompts waited for are named when no sample has ended for this many seconds."""
    progress_s: float | None = None
    """Seconds between the lines that say how far a step is; None: no such lines."""
    ranks: Ranks = field(default_factory=Ranks)
    """Who generates which of a round's groups; all ranks end a round with all of them."""


@dataclass
class UnfinishedStep:
    """What a step starts from: carried-over groups, or all that an interrupted attempt had collected."""

    groups: list[OpenGroup]
    """In order of submission."""
    tokens_generated: int = 0
    expired: list[OpenGroup] = field(default_factory=list)

    def copy(self) -> "UnfinishedStep":
        """An independent copy; the samples themselves are shared."""
        return UnfinishedStep([g.copy() for g in self.groups], self.tokens_generated, [g.copy() for g in self.expired])


class StepCollection:
    """Submits, samples, verifies and withdraws until the batch is full. Owns everything about the step under way.

    Args:
        start: groups that are part of the step from its start.
        next_position: takes the next problem from the run's order.
    """

    def __init__(
        self,
        setup: CollectionSetup,
        step: int,
        start: UnfinishedStep,
        keep_rate: KeepRate,
        next_position: Callable[[], int],
    ) -> None:
        self._setup = setup
        self._step = step
        self._next_position = next_position
        self._stream: SampleStream = setup.engine.open(setup.sampling)
        self._attempts: Counter[str] = Counter()
        self._num_submitted = 0
        self._generate_s = self._verify_s = self._tail_s = 0.0
        self._tail_started: float | None = None
        self.groups = OpenGroups(setup.rules.admission, keep_rate, in_rounds=setup.ranks.size > 1)
        self.groups.tokens_generated, self.groups.expired = start.tokens_generated, list(start.expired)
        for group in start.groups:
            if group.group.step == step:
                self._attempts[group.group.problem.id] += 1
                self._num_submitted += 1
            requests = self.groups.add(group)
            if setup.ranks.size == 1:  # several ranks share them out with their first round
                self._stream.submit(requests)
        self._progress = Progress(step, self.groups.admission, setup.stall_s, setup.progress_s)

    def run(self) -> None:
        """Collects until the batch is full or the allowance is spent."""
        if self._setup.ranks.size > 1:
            self._run_in_rounds()
        else:
            self._run_as_stream()

    def drain(self, engine_failed: bool = False) -> None:
        """Takes everything out of the verifier and, unless it failed, out of the engine."""
        if not engine_failed:
            self._withdraw(self.groups.waiting_for())
        self._take_scores(self._setup.verifier.drain())

    def unfinished(self) -> UnfinishedStep:
        """What another attempt at this step can continue from."""
        return UnfinishedStep(self.groups.groups, self.groups.tokens_generated, self.groups.expired)

    def timings(self) -> dict[str, float | None]:
        return {"time/generate_s": self._generate_s, "time/verify_s": self._verify_s, "time/tail_s": self._tail_s}

    def _run_as_stream(self) -> None:
        setup, groups, admission = self._setup, self.groups, self.groups.admission
        while not (admission.full or admission.exhausted):
            if setup.stop_requested():
                raise StopRequestedError
            started = time.perf_counter()
            if setup.rules.carry_over != "all":
                self._withdraw(groups.keys_beyond_cut())
            while admission.wanted and self._stream.pending < setup.engine.concurrency:
                self._stream.submit(groups.add(self._next_group()))
            samples = self._stream.step()
            arrived = time.perf_counter()
            self._generate_s += arrived - started
            closed_group = self._verify(samples)
            # The number of groups under way follows from verdicts. With a reproducible engine it must not depend on
            # when a worker answers; with any other, sampling continues while verdicts are awaited.
            waits = (closed_group and setup.engine.reproducible) or not self._stream.pending
            self._take_scores(setup.verifier.drain() if waits else setup.verifier.collect())
            self._verify_s += time.perf_counter() - arrived
            self._watch(samples)
            if not samples and not self._stream.pending:
                self._check_none_lost()
            self._progress.report()
        if self._tail_started is not None and admission.full:
            self._tail_s = time.perf_counter() - self._tail_started

    def _run_in_rounds(self) -> None:
        ranks, admission = self._setup.ranks, self.groups.admission
        while not (admission.full or admission.exhausted):
            # All ranks stop here, or none, and all have the same groups.
            if any(ranks.gather(self._setup.stop_requested())):
                raise StopRequestedError
            while admission.wanted:
                self.groups.add(self._next_group())
            places = [place for place, group in enumerate(self.groups.groups) if not group.finished]
            own = [places[index] for index in ranks.own(places)]
            own_groups = [self.groups.groups[place] for place in own]
            self._sample_round(own_groups)
            started = time.perf_counter()
            self._take_scores(self._setup.verifier.drain())
            self._check_none_lost(own_groups)
            # Barrier: every rank continues once all ranks hold the full round.
            completions = {place: self.groups.groups[place].group.completions for place in own}
            found = {p: c for part in ranks.gather(completions if ranks.leads_engine else {}) for p, c in part.items()}
            self._verify_s += time.perf_counter() - started
            for place in places:
                self.groups.take_group(place, found[place])
            self._progress.report()

    def _sample_round(self, own: Sequence[OpenGroup]) -> None:
        """Samples this rank's groups of a round."""
        for group in own:
            self._stream.submit(group.requests())
        self._progress.restart_stall_clock()
        while self._stream.pending:
            started = time.perf_counter()
            samples = self._stream.step()
            self._generate_s += time.perf_counter() - started
            self._verify(samples)
            self._take_scores(self._setup.verifier.collect())
            self._watch(samples, own)

    def _next_group(self) -> OpenGroup:
        position = self._next_position()
        prompt = self._setup.prompts[position]
        attempt = self._attempts[prompt.problem.id]
        self._attempts[prompt.problem.id] += 1
        group = Group(self._step, self._num_submitted, prompt.problem, attempt, prompt.ids)
        self._num_submitted += 1
        return OpenGroup(group, position, self._setup.rules.samples_per_prompt)

    def _withdraw(self, keys: list[Any]) -> None:
        if keys:
            self.groups.take_withdrawn(self._stream.withdraw(keys))

    def _verify(self, samples: Iterable[Sample]) -> bool:
        """Hands samples to the verifier, on one rank per engine; returns whether a group is complete."""
        setup, closed_group = self._setup, False
        for sample in samples:
            text = setup.decode(sample.response_ids.tolist())
            closed_group |= self.groups.take_sample(sample, text)
            if setup.ranks.leads_engine:
                setup.verifier.submit(sample.key, _reference(self.groups.problem(sample.key), sample.key), text)
        return closed_group

    def _take_scores(self, scores: Iterable[tuple[Any, Score]]) -> None:
        for key, score in scores:
            sample, text = self.groups.pop_unscored(key)
            penalty, shaped = self._setup.reward(score, len(sample.response_ids), not sample.finished)
            self.groups.take_completion(Completion(sample, text, score, score.value, penalty, shaped))
        admission = self.groups.admission
        if self._tail_started is None and admission.kept >= TAIL_FROM * admission.rules.num_prompts:
            self._tail_started = time.perf_counter()

    def _watch(self, samples: Sequence[Sample], own: Sequence[OpenGroup] | None = None) -> None:
        """Warns when no sample of the groups that this rank samples (None: all) has ended for long."""
        if samples:
            self._progress.sample_ended()
        elif self._stream.pending and self._setup.ranks.leads_engine:
            self._progress.warn_if_stalled(lambda: self.groups.waiting_for(own))

    def _check_none_lost(self, own: Sequence[OpenGroup] | None = None) -> None:
        """Called when nothing is under way.

        Raises:
            LostSampleError: on all ranks, where one of them lacks samples of its groups.
        """
        missing = {key.problem_id for key in self.groups.waiting_for(own)}
        names = sorted(set().union(*self._setup.ranks.gather(missing)))
        if names:
            raise LostSampleError(f"step {self._step}: the engine has nothing under way, but lacks {listed(names)}")


def _reference(problem: Problem, key: SampleKey) -> Reference:
    sample = f"{key.step}/{key.attempt}/{key.sample_index}"
    return Reference(problem.id, problem.answer, problem.problem, problem.meta, sample)
