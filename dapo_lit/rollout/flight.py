"""The samples of one rollout step, from submission to verdict."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import SampleStream
from dapo_lit.engines.samples import Sample, SampleKey
from dapo_lit.rewards.pool import Reference
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.accumulation import Accumulation, OpenGroup
from dapo_lit.rollout.exchange import exchange
from dapo_lit.rollout.records import Completion, Group

if TYPE_CHECKING:
    from dapo_lit.rollout.collect import Collector

TAIL_FROM = 0.9
"""`time/tail_s` begins when this share of the batch is there."""


class StopRequestedError(Exception):
    """Raised between samples when the run was asked to stop; the step goes on, or begins anew, when it is resumed."""


class LostSampleError(RuntimeError):
    """The engine has nothing under way, but samples are missing."""


class Flight:
    """Submits, samples, verifies and withdraws until the batch is full."""

    def __init__(self, collector: "Collector", step: int, policy_version: int) -> None:
        self.collector = collector
        self.step = step
        self.groups = Accumulation(collector.rules.admission, collector.keep_rate, in_rounds=collector.ranks.size > 1)
        self.stream: SampleStream = collector.engine.open(collector.sampling)
        self.attempts: Counter[str] = Counter()
        self.num_submitted = 0
        self.generate_s = self.verify_s = 0.0
        self.tail_began: float | None = None
        self.tail_s = 0.0
        self.last_ended = time.monotonic()
        self.warn_after = collector.stall_s
        self.began = self.last_said = self.last_ended
        oldest = policy_version - collector.rules.max_staleness
        self._resume(oldest)
        self.ended_before = self.groups.admission.num_ended

    def _resume(self, oldest_version: int) -> None:
        """Takes in what an earlier step or an interrupted one left."""
        collector = self.collector
        before = collector.carried
        for group in before:
            group.carried, group.ended_earlier = True, group.finished
        if collector.interrupted is not None:
            before = collector.interrupted.groups
            self.groups.tokens_generated = collector.interrupted.tokens_generated
            self.groups.expired = [*collector.interrupted.expired]
        collector.carried, collector.interrupted = [], None
        expired = []
        for group in before:
            version = group.oldest_version
            if version is not None and version < oldest_version:
                expired.append(group)
                continue
            if group.group.step == self.step:
                self.attempts[group.group.problem.id] += 1
                self.num_submitted += 1
            requests = self.groups.add(group)
            if collector.ranks.size == 1:  # several ranks deal it out with their first round
                self.stream.submit(requests)
        self.groups.expired += expired
        collector.returned = [group.position for group in expired] + collector.returned

    def run(self) -> None:
        """Until the batch is full or the allowance is spent."""
        if self.collector.ranks.size > 1:
            self._run_in_rounds()
        else:
            self._run_as_a_stream()

    def _run_as_a_stream(self) -> None:
        verifier, admission = self.collector.verifier, self.groups.admission
        while not (admission.full or admission.exhausted):
            if self.collector.stop_requested():
                raise StopRequestedError
            started = time.perf_counter()
            self._withdraw()
            self._submit()
            samples = self.stream.step()
            arrived = time.perf_counter()
            self.generate_s += arrived - started
            closed = self._verify(samples)
            # The number under way follows from verdicts. An engine that could be reproduced must not depend on when
            # a worker answers; with another, sampling goes on while verdicts are awaited.
            waits = (closed and self.collector.engine.reproducible) or not self.stream.pending
            self._take_scores(verifier.drain() if waits else verifier.collect())
            self.verify_s += time.perf_counter() - arrived
            self._watch(samples)
            if not samples and not self.stream.pending:
                self._check_none_lost()
            self._say()
        if self.tail_began is not None and admission.full:
            self.tail_s = time.perf_counter() - self.tail_began

    def _run_in_rounds(self) -> None:
        """With several ranks: each samples its part of what is wanted, and all go on when all have all of it."""
        ranks, admission = self.collector.ranks, self.groups.admission
        while not (admission.full or admission.exhausted):
            # All ranks stop here, or none, and all have the same groups.
            if any(ranks.gather(self.collector.stop_requested())):
                raise StopRequestedError
            while admission.wanted:
                self.groups.add(self._next_group())
            new = [(place, group) for place, group in enumerate(self.groups.groups) if not group.finished]
            own = [new[position][1] for position in ranks.own(new)]
            self._sample(own)
            started = time.perf_counter()
            self._take_scores(self.collector.verifier.drain())
            self._check_none_lost(own)
            exchange(ranks, [group.group for _, group in new])
            self.verify_s += time.perf_counter() - started
            for place, group in new:
                self.groups.take_group(place, group.group.completions)
            self._say()

    def _sample(self, own: Sequence[OpenGroup]) -> None:
        """All that this rank has of a round."""
        for group in own:
            self.stream.submit(group.requests())
        self.last_ended = time.monotonic()  # the others may have taken long over the round before
        while self.stream.pending:
            started = time.perf_counter()
            samples = self.stream.step()
            self.generate_s += time.perf_counter() - started
            self._verify(samples)
            self._take_scores(self.collector.verifier.collect())
            self._watch(samples, own)

    def land(self) -> None:
        """Takes everything out of the engine and the verifier."""
        self._take_withdrawn(self.groups.waiting_for())
        self.take_verdicts()

    def take_verdicts(self) -> None:
        """Takes everything out of the verifier; what the engine has under way is left there."""
        self._take_scores(self.collector.verifier.drain())

    def _submit(self) -> None:
        collector, groups = self.collector, self.groups
        while groups.admission.wanted and self.stream.pending < collector.engine.concurrency:
            self.stream.submit(groups.add(self._next_group()))

    def _next_group(self) -> OpenGroup:
        collector = self.collector
        position = collector.next_position()
        prompt = collector.prompts[position]
        attempt = self.attempts[prompt.problem.id]
        self.attempts[prompt.problem.id] += 1
        group = Group(self.step, self.num_submitted, prompt.problem, attempt, prompt.ids)
        self.num_submitted += 1
        return OpenGroup(group, position, collector.rules.samples_per_prompt)

    def _withdraw(self) -> None:
        """Stops what can no longer be accepted, unless it is to be carried over."""
        if self.collector.rules.carry_over != "all":
            self._take_withdrawn(self.groups.keys_beyond_cut())

    def _take_withdrawn(self, keys: list[SampleKey]) -> None:
        if keys:
            self.groups.take_withdrawn(self.stream.withdraw(keys))

    def _verify(self, samples: Iterable[Sample]) -> bool:
        """Hands samples to the verifier, on one rank of those that share an engine; whether a group is complete."""
        collector, closed = self.collector, False
        for sample in samples:
            text = collector.decode(sample.response_ids)
            closed |= self.groups.take_sample(sample, text)
            if collector.ranks.tells:
                collector.verifier.submit(sample.key, _reference(self.groups.problem(sample.key)), text)
        return closed

    def _take_scores(self, scores: Iterable[tuple[Any, Score]]) -> None:
        for key, score in scores:
            sample, text = self.groups.unscored(key)
            penalty, shaped = self.collector.reward(score, len(sample.response_ids), not sample.finished)
            self.groups.take_score(Completion(sample, text, score, score.value, penalty, shaped))
        admission = self.groups.admission
        if self.tail_began is None and admission.kept >= TAIL_FROM * admission.rules.num_prompts:
            self.tail_began = time.perf_counter()

    def _watch(self, samples: Sequence[Sample], own: Sequence[OpenGroup] | None = None) -> None:
        """Says which prompts a stall waits for, of the groups that this rank samples; None: of all."""
        now = time.monotonic()
        if samples:
            self.last_ended, self.warn_after = now, self.collector.stall_s
            return
        if not self.stream.pending or now - self.last_ended < self.warn_after:
            return
        names = sorted({key.problem_id for key in self.groups.waiting_for(own)})
        if names and self.collector.ranks.tells:
            seconds = now - self.last_ended
            print(
                f"step {self.step}: no sample has ended for {seconds:.0f} s; waiting for {_listed(names)}", flush=True
            )
        self.warn_after *= 2

    def _check_none_lost(self, own: Sequence[OpenGroup] | None = None) -> None:
        """Nothing is under way: all ranks raise LostSampleError where one of them lacks samples of its groups."""
        lacking = {key.problem_id for key in self.groups.waiting_for(own)}
        names = sorted(set().union(*self.collector.ranks.gather(lacking)))
        if names:
            raise LostSampleError(f"step {self.step}: the engine has nothing under way, but lacks {_listed(names)}")

    def _say(self) -> None:
        """How far a long step is, and when it is over at the rates so far."""
        now, every, admission = time.monotonic(), self.collector.progress_s, self.groups.admission
        if every is None or now - self.last_said < every:
            return
        self.last_said = now
        kept, ended, wanted = admission.kept, admission.num_ended, admission.rules.num_prompts
        seconds, rest = now - self.began, max(0.0, admission.rules.allowance - ended)
        if kept:
            rest = min(rest, (wanted - kept) * ended / kept)
        eta = f", eta {rest * seconds / (ended - self.ended_before):.0f} s" if ended > self.ended_before else ""
        print(
            f"step {self.step}: {kept} of {wanted} groups kept, {ended} sampled, {seconds:.0f} s{eta}",
            flush=True,
        )

    def timings(self) -> dict[str, float | None]:
        return {"time/generate_s": self.generate_s, "time/verify_s": self.verify_s, "time/tail_s": self.tail_s}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{len(names)} prompt{'s' if len(names) != 1 else ''}: {', '.join(names[:8])}{more}"


def _reference(problem: Problem) -> Reference:
    return Reference(problem_id=problem.id, answer=problem.answer, problem=problem.problem, meta=problem.meta)
