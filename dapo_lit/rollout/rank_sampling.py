"""One rank's part of a rollout step: it samples its groups and has them scored, tick by tick.

The ranks exchange the reports of a tick during the next one (step_collection.py). With a reproducible engine a tick is
a number of engine steps, so that timing decides nothing.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ablations.screen import StatusLine
from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import (
    PartialSample,
    RolloutEngine,
    Sample,
    SampleKey,
    SampleRequest,
    SampleStream,
    Sampling,
)
from dapo_lit.ranks import Ranks
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.dynamic_sampling import Admission, CollectionRules
from dapo_lit.rollout.episodes import asked
from dapo_lit.rollout.records import Completion, Prompt
from dapo_lit.rollout.report import Report

TICK_STEPS = 8
"""Engine steps of a tick of several ranks, where engines are reproducible or shared by ranks."""
TICK_S = 0.2
"""Seconds of a tick elsewhere."""
ANOTHER_WAIT_S = 10.0
"""Seconds without a call after which it is another wait for rewards."""


class Verdicts(Protocol):
    """The scorer of samples: a Verifier, or the verdicts of a recording."""

    @property
    def wants_groups(self) -> bool: ...

    @property
    def wants_ids(self) -> bool: ...

    def submit(self, ticket: SampleKey, problem: RewardProblem, text: str) -> None: ...

    def submit_group(self, completions: Sequence[tuple[SampleKey, RewardProblem, str]]) -> None: ...

    def collect(self) -> list[tuple[Any, Score]]: ...

    def drain(self, gives_up: Callable[[int], bool] = ...) -> list[tuple[Any, Score]]: ...


@dataclass(kw_only=True)
class CollectionSetup:
    """Everything that the steps of a run have in common."""

    prompts: Sequence[Prompt]
    engine: RolloutEngine
    verifier: Verdicts
    decode: Callable[[Sequence[int]], str]
    shape: Callable[[Sequence[Completion]], None]
    """Gives the completions of a whole group their length penalty and the reward that advantages see."""
    rules: CollectionRules
    sampling: Sampling
    stop_requested: Callable[[], bool] = lambda: False
    ranks: Ranks = field(default_factory=Ranks)
    """The processes that sample together, over a process group that nothing else uses meanwhile."""


class Progress:
    """Status lines of a long step: how far its groups are, and its rewards where nothing else is awaited."""

    def __init__(self, step: int, admission: Admission) -> None:
        self._admission = admission
        self._line = StatusLine(f"step {step}")
        self._ended_before = admission.num_ended
        self._rewards, self._most_waiting = StatusLine(f"step {step}"), 0
        self._last_wait = float("-inf")

    def waits_for_rewards(self, tasks: int) -> bool:
        """Called twice a second while nothing but verdicts is awaited. Returns False: keep waiting."""
        # The clock that nobody can set: a change of the system's time must not look like a wait.
        now = time.monotonic()
        if now - self._last_wait > ANOTHER_WAIT_S:
            self._rewards, self._most_waiting = StatusLine(self._line.task), tasks
        self._last_wait = now
        self._rewards.update(self._most_waiting - tasks, self._most_waiting, f"waits for {tasks} tasks of the reward")
        return False

    def report(self) -> None:
        """The groups of the step, and when it ends at the rates so far."""
        admission = self._admission
        kept, ended, wanted = admission.kept, admission.num_ended, admission.rules.num_prompts
        left = max(0.0, admission.rules.allowance - ended)
        if kept:
            # At the keep rate of this step so far, but never more than the allowance has left.
            left = min(left, (wanted - kept) * ended / kept)
        new = ended - self._ended_before
        self._line.update(new, new + left, f"{kept} of {wanted} groups kept, {ended} sampled")

    def end(self) -> None:
        self._line.erase()


class RankSampling:
    """Between this rank's engine and verifier.

    Ranks that share an engine make the same calls of it; the first of them has its samples scored.
    """

    def __init__(self, setup: CollectionSetup, progress: Progress) -> None:
        self._setup = setup
        self._progress = progress
        self._problems: dict[tuple[int, str, int], Problem] = {}  # by group
        # A stream a step: weights do not change within it, so one version labels everything it gives.
        self._stream: SampleStream = setup.engine.open(setup.sampling)
        self._in_flight: Counter[tuple[int, str, int]] = Counter()  # samples of each group
        self._unscored: dict[SampleKey, tuple[Sample, str]] = {}
        # Of a reward that asks for whole groups: samples that wait for the others of their group, and its size.
        self._held: dict[tuple[int, str, int], list[tuple[SampleKey, RewardProblem, str]]] = {}
        self._sizes: Counter[tuple[int, str, int]] = Counter()
        # Since the last report:
        self._new: list[SampleRequest] = []
        self._unasked: list[Sample] = []  # that ended in an earlier step
        self._scored: list[Completion] = []
        self._withdrawn: dict[SampleKey, PartialSample | Sample] = {}
        self.failure: Exception | None = None
        """Error of the last tick. It is raised once the other ranks have the report of it."""
        self.generate_s = self.verify_s = 0.0

    def submit(self, problem: Problem, requests: Sequence[SampleRequest], unscored: Sequence[Sample]) -> None:
        """Adds requests of one group, all answers to this problem, to the next tick, and its samples that only lack a
        verdict."""
        keys = [request.key for request in requests] + [sample.key for sample in unscored]
        self._problems |= {_group(key): problem for key in keys}
        self._new += requests
        self._unasked += unscored

    def tick(self, unwanted: Sequence[SampleKey]) -> None:
        """Withdraws what is unwanted, and samples for a while; does nothing after a failure."""
        if self.failure is not None:
            return
        try:
            self._withdraw(unwanted)
            self._sample()
        except Exception as error:
            # Raised here, it would leave the other ranks waiting in an exchange.
            self.failure = error

    @property
    def idle(self) -> bool:
        """True if there is nothing to sample until the next exchange."""
        return self.failure is not None or not self._stream.pending

    def end(self, unwanted: Sequence[SampleKey]) -> None:
        """The last tick: takes everything out of the verifier."""
        try:
            self._withdraw(unwanted)
            self._reopen()
            self._score(self._setup.verifier.drain(self._progress.waits_for_rewards))
        except Exception as error:
            self.failure = error

    def report(self, stops: bool) -> Report:
        """Everything since the last report."""
        # As text: exceptions of vLLM or a user's reward may not survive pickling.
        failure = f"{type(self.failure).__name__}: {self.failure}" if self.failure else None
        pending = self._stream.pending + len(self._new) + len(self._unasked)
        waiting = self._stream.waiting + len(self._unasked)
        preemptions = self._setup.engine.preemptions
        report = Report(stops, failure, pending, waiting, preemptions, self._scored, self._withdrawn)
        self._scored, self._withdrawn = [], {}
        return report

    def _withdraw(self, keys: Sequence[SampleKey]) -> None:
        if keys:
            found = self._stream.withdraw(keys)
            self._withdrawn |= found
            # Or the group would never count as complete, and the verdicts that are awaited below would not be waited
            # for.
            self._in_flight.subtract(map(_group, found))

    def _sample(self) -> None:
        setup, closed_group, steps = self._setup, False, 0
        started = turned = time.perf_counter()
        new, self._new = self._new, []
        unasked, self._unasked = self._unasked, []
        groups = [_group(r.key) for r in new] + [_group(s.key) for s in unasked]
        self._in_flight.update(groups)
        self._sizes.update(groups)
        self._stream.submit(new)
        closed_group |= self._verify(unasked)
        # Scoring runs in worker processes meanwhile; this loop only hands over what has ended.
        while self._stream.pending and not self._tick_ends(steps, started):
            samples = self._stream.step()
            arrived = time.perf_counter()
            self.generate_s += arrived - turned
            closed_group |= self._verify(samples)
            turned, steps = time.perf_counter(), steps + 1
            self.verify_s += turned - arrived
        # The number of groups under way follows from verdicts. With a reproducible engine it must not depend on when a
        # worker answers; with any other, sampling continues while verdicts are awaited.
        waits = (closed_group and setup.engine.reproducible) or not self._stream.pending
        self._score(setup.verifier.drain(self._stops_waiting) if waits else setup.verifier.collect())
        self.verify_s += time.perf_counter() - turned

    def _stops_waiting(self, tasks: int) -> bool:
        """While verdicts are awaited: says so, and sees a stop. The samples are then scored, or drawn, again."""
        self._progress.waits_for_rewards(tasks)
        return self._setup.stop_requested()

    def _tick_ends(self, steps: int, started: float) -> bool:
        ranks = self._setup.ranks
        if ranks.size == 1:
            return steps == 1
        if self._setup.engine.reproducible or ranks.per_engine > 1:
            return steps == TICK_STEPS
        return steps > 0 and time.perf_counter() - started >= TICK_S

    def _verify(self, samples: Iterable[Sample]) -> bool:
        """Hands samples to the verifier; returns whether a group is complete."""
        setup, closed_group = self._setup, False
        # The other ranks of an engine have the same samples; scored twice, a deadline could pass on one of them only.
        for sample in samples if setup.ranks.leads_engine else ():
            key, text = sample.key, setup.decode(sample.row_ids.tolist())
            # The verifier gets text only, unless a function asks for tokens: they are copied to its processes.
            self._unscored[key] = sample, text
            group = _group(key)
            name = f"{key.step}/{key.attempt}/{key.sample_index}"
            problem = asked(self._problems[group], sample, setup.decode, name, with_ids=setup.verifier.wants_ids)
            self._in_flight[group] -= 1
            closed_group |= not self._in_flight[group]
            if not setup.verifier.wants_groups:
                setup.verifier.submit(key, problem, text)
                continue
            held = self._held.setdefault(group, [])
            held.append((key, problem, text))
            if len(held) == self._sizes[group]:
                # By index, so that the function gets the same batch whichever sample ended first.
                setup.verifier.submit_group(sorted(self._held.pop(group), key=lambda each: each[0].sample_index))
        return closed_group

    def _reopen(self) -> None:
        """Gives samples back whose group did not get complete and is asked for as a whole: whole, to be scored then.
        To draw their last tokens again would let answers go on that had ended."""
        for key, _, _ in [each for held in self._held.values() for each in held]:
            sample, _ = self._unscored.pop(key)
            self._withdrawn[key] = sample.paid
        self._held = {}

    def _score(self, scores: Iterable[tuple[Any, Score]]) -> None:
        for key, score in scores:
            sample, text = self._unscored.pop(key)
            if sample.failure is not None:
                # Whatever a rule says of what there is: without its environment it was no fair try.
                score = Score(False, score.value, error=sample.failure)
            # DAPO Eq. 7: the reward is the rule's value; penalties come when the group is whole.
            self._scored.append(Completion(sample, text, score, score.value))


def _group(key: SampleKey) -> tuple[int, str, int]:
    return key.step, key.problem_id, key.attempt
