"""The groups of one rollout step, from submission to verdict, on one rank or several.

Groups are submitted as long as more are wanted, samples are verified as they end, and what can no longer be accepted is
withdrawn.

Every rank walks the same submission order and samples its share of the groups (rank_sampling.py). In short ticks the
ranks exchange what they sampled and scored, so that after each exchange all of them hold the same groups. Everything
here (submission, keep rate, acceptance, metrics, carry-over) is then the same computation on the same data: no rank
has a quota, and no decision can differ between ranks. Scores are exchanged rather than computed twice, because a
verifier's deadline may pass on one rank and not on another.

An exchange is under way while the engines decode. Reproducible engines take it in after one tick, wherever that takes
them to wait; the others after the tick in which it arrives, so that no engine waits for a slower one.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from dapo_lit.engines.protocol import NO_TOKENS, EngineError, PartialSample, Sample, SampleKey, SampleRequest
from dapo_lit.ranks import Exchange, raised_by_all
from dapo_lit.rollout.dynamic_sampling import Admission, KeepRate
from dapo_lit.rollout.rank_sampling import CollectionSetup, Progress, RankSampling
from dapo_lit.rollout.records import Completion, Group, OpenGroup
from dapo_lit.rollout.report import Report, from_bytes, to_bytes

TAIL_FROM = 0.9
"""`time/tail_s` starts when this share of the batch is there."""


class StopRequestedError(Exception):
    """Raised between samples when the run was asked to stop; a resumed run repeats the step."""


class LostSampleError(RuntimeError):
    """The engine has nothing under way, but samples are missing."""


class StepCollection:
    """Submits groups and takes in their samples, in any order, until the batch is full.

    carried: groups of an earlier step, which come first.
    expired: carried into this step and dropped for their age; they have no place.
    next_position: takes the next problem from the run's order.
    """

    def __init__(
        self,
        setup: CollectionSetup,
        step: int,
        carried: Sequence[OpenGroup],
        expired: Sequence[OpenGroup],
        keep_rate: KeepRate,
        next_position: Callable[[], int],
    ) -> None:
        self._setup = setup
        self._step = step
        self._next_position = next_position
        self._attempts: Counter[str] = Counter()
        self._num_submitted = 0
        self._exchange_s = self._tail_s = 0.0
        self._tail_started: float | None = None
        self.admission = Admission(setup.rules, keep_rate)
        self.groups: list[OpenGroup] = []
        """By place, in order of submission."""
        self.tokens_generated = 0
        self.expired = expired
        self._places: dict[SampleKey, int] = {}  # of the samples that are not scored
        self._withdrawn_from: int | None = None
        self._progress = Progress(step, self.admission)
        self._own = RankSampling(setup, self._progress)
        # Under way; of a single rank, its own report.
        self._exchange: Exchange | list[Report] = []
        self._engines: list[int] = []  # that sample the groups, by place
        # By engine: the samples it still has to give, and those of them that take a place of it.
        self._pending = [0] * setup.ranks.num_engines
        self._placed = [0] * setup.ranks.num_engines
        self._preemptions: list[int | None] = []  # by engine
        for group in carried:
            self._add(group)

    def run(self) -> None:
        """Collects until the batch is full or the allowance is spent."""
        setup, admission = self._setup, self.admission
        self._post(setup.stop_requested())
        while True:
            # Everything below decides on what all ranks know, never on what this one has just seen.
            stops = self._take_in()
            self._progress.report()
            if admission.full or admission.exhausted:
                break
            if stops:  # only here: a batch that is complete is kept
                raise StopRequestedError
            self._check_none_lost()
            # One at a time, as each submission changes what is wanted next; with an engine that has no room, waiting is
            # free.
            while admission.wanted and min(self._placed) < setup.engine.concurrency:  # an engine has room
                self._add(self._next_group())
            # With carry_over=all they go on in the next step, so stopping them would waste what they have.
            unwanted = self._keys_beyond_cut() if setup.rules.carry_over != "all" else []
            if setup.ranks.size == 1:
                self._own.tick(unwanted)
                self._post(setup.stop_requested())
            else:  # what the last tick gave is on its way during the next one
                self._post(setup.stop_requested())
                self._own.tick(unwanted)
                # Sampling goes on meanwhile: an exchange takes longer than a tick where ranks are on several machines.
                while not self._arrived():
                    self._own.tick([])
        self._progress.end()
        if self._tail_started is not None and admission.full:
            self._tail_s = time.perf_counter() - self._tail_started

    def drain(self) -> None:
        """Takes everything out of the verifiers and the engine."""
        self._own.end(self._waiting_for(self.groups))
        self._post()
        self._take_in()

    def costs(self) -> dict[str, float | None]:
        """Seconds on this rank, and preemptions on all."""
        return {
            "perf/preemptions": None if None in self._preemptions else sum(filter(None, self._preemptions)),
            "time/generate_s": self._own.generate_s + self._exchange_s,
            "time/verify_s": self._own.verify_s,
            "time/tail_s": self._tail_s,
        }

    @property
    def examined(self) -> list[OpenGroup]:
        return self.groups[: self.admission.num_examined]

    @property
    def accepted(self) -> list[Group]:
        """At most `num_prompts`."""
        return [g for place in self.admission.accepted if (g := self.groups[place].group).comparable]

    @property
    def leftover(self) -> list[OpenGroup]:
        """Groups after the last accepted one."""
        return self.groups[self.admission.num_examined :]

    def _next_group(self) -> OpenGroup:
        position = self._next_position()
        prompt = self._setup.prompts[position]
        # A problem may come twice in a step (a small data set, many rounds); the attempt gives it other noise.
        attempt = self._attempts[prompt.problem.id]
        self._attempts[prompt.problem.id] += 1
        group = Group(self._step, self._num_submitted, prompt.problem, attempt, prompt.ids)
        self._num_submitted += 1
        return OpenGroup(group, position, self._setup.rules.samples_per_prompt)

    def _add(self, group: OpenGroup) -> None:
        """Gives a group to the engine that has the fewest samples in its places: the same one on every rank."""
        requests, unscored = self._place(group)
        # Ties go to the first, on every rank alike: `min` keeps the order.
        engine = min(range(len(self._placed)), key=self._placed.__getitem__)
        self._engines.append(engine)
        self._pending[engine] += len(requests)
        self._placed[engine] += len(requests)
        if engine == self._setup.ranks.engine:
            self._own.submit(group.group.problem, requests, unscored)

    def _post(self, stops: bool = False) -> None:
        """Sends what this rank has sampled to all ranks."""
        ranks, report = self._setup.ranks, self._own.report(stops)
        self._exchange = [report] if ranks.size == 1 else ranks.exchange(to_bytes(report))

    def _arrived(self) -> bool:
        """True if the exchange under way is to be taken in now: at the same engine step on all ranks of an engine."""
        if self._setup.engine.reproducible or isinstance(self._exchange, list):
            return True
        return self._setup.ranks.any_of_engine(self._own.idle or self._exchange.done())

    def _take_in(self) -> bool:
        """Waits for what each rank has sampled and takes it in; returns whether any was asked to stop.

        Raises what failed on this rank, or EngineError if something failed on another one; all ranks raise at once.
        """
        ranks, started = self._setup.ranks, time.perf_counter()
        posted = self._exchange
        reports = posted if isinstance(posted, list) else [*map(from_bytes, posted.wait())]
        self._exchange_s += time.perf_counter() - started
        of_engines = reports[:: ranks.per_engine]
        self._pending = [report.pending for report in of_engines]
        # An episode that waits for a slow environment must not keep the engine from sampling another group.
        self._placed = [report.pending - report.waiting for report in of_engines]
        self._preemptions = [report.preemptions for report in of_engines]
        for report in of_engines:
            for completion in report.completions:
                self._take_completion(completion)
            self._take_withdrawn(report.withdrawn)
        admission = self.admission
        if self._tail_started is None and admission.kept >= TAIL_FROM * admission.rules.num_prompts:
            self._tail_started = time.perf_counter()
        failure = self._own.failure
        # A newer one is raised everywhere next time.
        if failure is not None and reports[ranks.rank].failure is not None:
            self._own.failure = None
            raise raised_by_all(failure)
        for rank, report in enumerate(reports):
            if report.failure is not None:
                raise raised_by_all(EngineError(f"rank {rank}: {report.failure}"))
        return any(report.stops for report in reports)

    def _check_none_lost(self) -> None:
        """Raises LostSampleError on all ranks if an engine has nothing to give, but its groups lack samples."""
        if all(self._pending):
            return
        cut = self.admission.cut  # what is beyond it has been withdrawn
        placed = zip(self.groups[: None if cut is None else cut + 1], self._engines, strict=False)
        missing = self._waiting_for(group for group, engine in placed if not self._pending[engine])
        if missing:
            names = sorted({key.problem_id for key in missing})
            raise LostSampleError(
                f"step {self._step}: the engine has nothing under way, but lacks samples of {len(names)} prompts: "
                f"{', '.join(names[:8])}"
            )

    def _place(self, group: OpenGroup) -> tuple[list[SampleRequest], list[Sample]]:
        """Gives a group its place; returns requests for the samples it lacks, and those that lack a verdict."""
        place = self.admission.submit(carried=group.carried)
        self.groups.append(group)
        # Only samples that it lacks: a carried group keeps the ones it has.
        requests, unscored = group.requests(), group.unscored
        self._places |= {r.key: place for r in requests} | {s.key: place for s in unscored}
        if group.finished:
            self._resolve(place)
        return requests, unscored

    def _take_completion(self, completion: Completion) -> None:
        """Takes a scored sample; the last one closes its group."""
        key = completion.sample.key
        # Without tokens of earlier steps, which were counted when they were sampled.
        self.tokens_generated += completion.sample.num_new_tokens
        place = self._places.pop(key)
        group = self.groups[place]
        group.scored[key.sample_index] = completion
        group.partial.pop(key.sample_index, None)
        if group.finished:
            ended = [group.scored[i] for i in range(group.num_samples)]
            # By whole groups: a length penalty may depend on the other answers (PENALTIES in objective/shaping.py).
            self._setup.shape(ended)
            # A missing verdict is not a wrong answer: as -1 it would teach the policy to avoid whatever is slow to
            # verify.
            group.group.completions = [c for c in ended if not c.score.missing]
            group.group.missing = [c for c in ended if c.score.missing]
            self._resolve(place)

    def _resolve(self, place: int) -> None:
        self.admission.resolve(place, self.groups[place].group.passes(self.admission.rules))

    def _take_withdrawn(self, withdrawn: dict[SampleKey, PartialSample | Sample]) -> None:
        """Takes the tokens of samples that were stopped before their end, or before their verdict."""
        for key, partial in withdrawn.items():
            group = self.groups[self._places[key]]
            before = group.partial.get(key.sample_index, NO_TOKENS)
            self.tokens_generated += len(partial.response_ids) - len(before.response_ids)
            group.partial[key.sample_index] = partial

    def _keys_beyond_cut(self) -> list[SampleKey]:
        """Samples whose group can no longer be accepted; empty where the cut has not moved since the last call."""
        cut = self.admission.cut
        # A batch that is waited for as a whole is what the authors' script has; it withdraws nothing.
        if self.admission.rules.request_groups is not None or cut is None or cut == self._withdrawn_from:
            return []
        self._withdrawn_from = cut
        return self._waiting_for(self.groups[cut + 1 :])

    def _waiting_for(self, groups: Iterable[OpenGroup]) -> list[SampleKey]:
        """Samples of `groups` that are not scored."""
        return [
            group.key(i)
            for group in groups
            if not group.finished
            for i in range(group.num_samples)
            if group.key(i) in self._places
        ]
