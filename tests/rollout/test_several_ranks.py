"""Several ranks sample one step together. Here they are threads of one process, each with an engine of its own."""

import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine, ScriptedResponse, ScriptedStream
from test_collect import END, RIGHT, RULES, WRONG, collector, indices
from test_interrupted import FailingEngine
from test_streaming import PROBLEMS, WORK, ForgetfulEngine, half_done, timed

from dapo_lit.data.order import ProblemOrder
from dapo_lit.engines.protocol import Sample, SampleKey, Sampling
from dapo_lit.ranks import Ranks
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rollout import rank_sampling
from dapo_lit.rollout.collect import Collector
from dapo_lit.rollout.dynamic_sampling import CollectionRules
from dapo_lit.rollout.records import CollectedStep
from dapo_lit.rollout.step_collection import LostSampleError, StopRequestedError


@dataclass
class Meeting:
    """Where the threads exchange values; one that fails sends the others home."""

    size: int
    values: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.barrier = Barrier(self.size, timeout=20)
        self.values = [b""] * self.size

    def gather(self, rank: int, value: Any) -> list[Any]:
        self.values[rank] = pickle.dumps(value)
        self.barrier.wait()
        found = [pickle.loads(told) for told in self.values]
        self.barrier.wait()
        return found


@dataclass(frozen=True)
class Threads(Ranks):
    meeting: Meeting = field(default_factory=lambda: Meeting(1))

    def gather(self, value: Any) -> list[Any]:
        return self.meeting.gather(self.rank, value)


def together(made: list[Collector], act: Callable[[Collector], Any], per_engine: int = 1) -> list[Any]:
    """What `act` gives on every rank; raises the error of the rank that failed first."""
    meeting = Meeting(len(made))

    def on_rank(rank: int) -> Any:
        made[rank].setup.ranks = Threads(rank, len(made), per_engine=per_engine, meeting=meeting)
        try:
            return act(made[rank])
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(len(made)) as threads:
        futures = [threads.submit(on_rank, rank) for rank in range(len(made))]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]


def script(key: SampleKey) -> ScriptedResponse:
    """Two thirds of the problems are mixed; lengths differ."""
    number = int(key.problem_id[1:])
    right = number % 3 > 0 and key.sample_index == 0
    length = 1 + (number + key.step) % 3
    return ScriptedResponse((*[END] * (length - 1), RIGHT if right else WRONG), (-0.5,) * length, ends_at=length)


def step_of(collected: CollectedStep) -> dict[str, Any]:
    metrics = {key: value for key, value in collected.metrics.items() if not key.startswith("time/")}
    groups = [(g.step, g.index, g.problem.id, g.completions) for g in collected.accepted]
    return {"groups": groups, "generated": indices(collected.generated), "tokens": collected.tokens_generated} | metrics


def made_for(rules: CollectionRules = RULES) -> Collector:
    return collector(script, rules, problems=PROBLEMS)


def test_ranks_that_share_an_engine_accept_the_same_groups_whatever_the_second_one_would_say_of_them():
    made = [made_for(), made_for()]
    made[1].setup.decode = lambda ids: "no answer"  # as if its deadlines had passed
    steps = together(made, lambda c: [step_of(c.collect(step, step)) for step in (1, 2)], per_engine=2)
    assert steps[0] == steps[1]
    alone = made_for()
    for got, expected in zip(steps[0], [alone.collect(step, step) for step in (1, 2)], strict=True):
        assert got["groups"] == step_of(expected)["groups"]
        assert got["tokens"] > 0
    assert made[0].state_dict() == made[1].state_dict()


def test_every_token_counts_once_on_every_rank():
    rules = replace(RULES, dynamic_sampling=False)  # nothing is begun ahead: the price is that of one process too
    alone = [step_of(made_for(rules).collect(1, 1))]
    for size, per_engine in ((2, 1), (2, 2), (4, 2)):
        made = [made_for(rules) for _ in range(size)]
        assert together(made, lambda c: step_of(c.collect(1, 1)), per_engine) == alone * size


def test_samples_that_one_ranks_engine_lost_are_named_by_all():
    made = [made_for(replace(RULES, num_prompts=8)) for _ in range(4)]
    for one in made:
        one.setup.engine = ForgetfulEngine(script)
        one.setup.engine.sync_weights([], version=0)

    def error_of(one: Collector) -> str:
        with pytest.raises(LostSampleError) as raised:
            one.collect(1, 0)
        return str(raised.value)

    said = set(together(made, error_of))
    assert len(said) == 1
    assert said.pop().endswith("lacks 1 prompt: p3")


def mixed_but(unmixed: list[int], num_prompts: int) -> Collector:
    """All problems are mixed, but those that the order has in these places."""
    wrong = {f"p{number}" for place, number in enumerate(ProblemOrder(30, seed=0).next(30)) if place in unmixed}

    def script(key: SampleKey) -> ScriptedResponse:
        right = key.sample_index == 0 and key.problem_id not in wrong
        return ScriptedResponse((END, RIGHT if right else WRONG), (-0.5, -0.5))

    return collector(script, replace(RULES, num_prompts=num_prompts), problems=30)


@pytest.mark.parametrize("size", [1, 2])
def test_what_was_sampled_is_kept_at_a_stop_where_it_could_not_be_sampled_again(size, monkeypatch):
    monkeypatch.setattr(rank_sampling, "TICK_S", 0.0)  # one sample a tick
    made = [mixed_but([1], num_prompts=3) for _ in range(2)]
    for one, asked in zip(made, (True, False), strict=True):
        one.setup.engine.reproducible = False
        one.setup.stop_requested = iter([False, False, asked]).__next__

    def stopped(one: Collector) -> dict[str, Any]:
        with pytest.raises(StopRequestedError):
            one.collect(1, 0)
        return one.state_dict()

    first, second = together(made, stopped)
    assert first == second
    sampled = {group.key(i) for group in first["interrupted"].groups for i in group.scored}
    assert len(sampled) == 4
    resumed = [mixed_but([1], num_prompts=3) for _ in range(size)]
    for one in resumed:
        one.load_state_dict(pickle.loads(pickle.dumps(first)))
    found = together(resumed, lambda c: step_of(c.collect(1, 0)))
    assert not {request.key for one in resumed for request in one.setup.engine.submitted} & sampled
    whole = together([mixed_but([1], num_prompts=3) for _ in range(2)], lambda c: step_of(c.collect(1, 0)))
    assert len(whole[0]["groups"]) == 3
    for step in found:
        assert {key: step[key] for key in ("groups", "generated")} == {
            key: whole[0][key] for key in ("groups", "generated")
        }


def test_a_group_that_one_process_left_unfinished_goes_on_with_one_of_several():
    before = half_done("all")
    before.collect(1, policy_version=0)
    state = before.state_dict()
    waiting = [group.key(i) for group in state["carried"] for i in range(2)]
    assert len(waiting) == 4
    alone, *made = [half_done("all") for _ in range(3)]
    for one in (alone, *made):
        one.load_state_dict(pickle.loads(pickle.dumps(state)))
        one.setup.engine.sync_weights([], version=1)
    steps = together(made, lambda c: c.collect(2, policy_version=1))
    submitted = [request.key for one in made for request in one.setup.engine.submitted]
    assert sorted(submitted, key=str) == sorted(waiting, key=str)
    expected = step_of(alone.collect(2, policy_version=1))
    assert [step_of(step)["groups"] for step in steps] == [expected["groups"]] * 2
    assert [step.tokens_generated for step in steps] == [4 * 2] * 2  # two of the four tokens were there
    assert made[0].state_dict() == made[1].state_dict()


def test_an_unfinished_response_is_carried_by_all_ranks_whichever_of_them_sampled_it(monkeypatch):
    monkeypatch.setattr(rank_sampling, "TICK_STEPS", 1)
    made = [half_done("all") for _ in range(2)]
    steps = together(made, lambda c: c.collect(1, policy_version=0))
    # The first rank has the first and the third group: the third is half done when the first has ended.
    assert made[0].state_dict() == made[1].state_dict()
    [second, third] = made[0].carried
    assert second.finished
    assert [len(third.partial[i].response_ids) for i in range(2)] == [2, 2]
    assert [step.tokens_generated for step in steps] == [2 * 4 + 2 * 4 + 2 * 2] * 2


class Waiting(ScriptedStream):
    """Gives a sample of the slow problem once there are nine samples of others."""

    def step(self) -> list[Sample]:
        assert self.pending, "an engine with nothing to do is asked for samples"
        slow = [playing for playing in self._playing if playing.request.key.problem_id == SLOW]
        others = [playing for playing in self._playing if playing not in slow]
        self._engine.steps += 1
        assert self._engine.steps < 1000, "the others wait for the slow answer"
        if slow and not others and len(self._engine.ended) < 9:
            return []
        self._playing = others or slow
        held_back = slow if others else []
        samples = super().step()
        self._playing += held_back
        self._engine.ended.extend(sample for sample in samples if sample.key.problem_id != SLOW)
        return samples


class WaitingEngine(ScriptedEngine):
    steps = 0

    def open(self, sampling: Sampling) -> Waiting:
        return Waiting(self, sampling.max_response_tokens, self.version)


SLOW = f"p{ProblemOrder(30, seed=0).next(1)[0]}"


@pytest.mark.parametrize(("reproducible", "size"), [(True, 2), (False, 2), (True, 3)])
def test_a_long_answer_of_one_rank_does_not_hold_up_the_groups_of_the_others(reproducible, size, monkeypatch):
    """The first group ends only after nine samples of others, which no first batch of three groups has."""
    monkeypatch.setattr(rank_sampling, "TICK_S", 0.001)
    made, ended = [mixed_but([1, 2, 3], num_prompts=3) for _ in range(size)], []
    for one in made:
        one.setup.engine = WaitingEngine(one.setup.engine.response, reproducible=reproducible)
        one.setup.engine.ended = ended
        one.setup.engine.sync_weights([], version=0)
    steps = together(made, lambda c: step_of(c.collect(1, 0)))
    alone = step_of(mixed_but([1, 2, 3], num_prompts=3).collect(1, 0))
    for step in steps:
        assert (step["groups"], step["generated"]) == (alone["groups"], alone["generated"])
        assert step["groups"][0][2] == SLOW


@settings(max_examples=5, deadline=None)
@given(**WORK, size=st.integers(2, 4))
@example(mixed=[True, False] * 6, seconds=[7.0 * i % 11 for i in range(12)], concurrency=40, size=2)
@example(mixed=[False, True, False] * 4, seconds=[5.0 * i % 13 for i in range(12)], concurrency=40, size=3)
def test_with_reproducible_engines_no_number_depends_on_how_fast_a_rank_is(mixed, seconds, concurrency, size):
    rules = replace(RULES, num_prompts=5)

    def collected(slow: int | None) -> list[Any]:
        made = [collector(timed(mixed, seconds), rules, problems=PROBLEMS) for _ in range(size)]
        for rank, one in enumerate(made):
            one.setup.engine.concurrency = concurrency
            if rank == slow:
                one.setup.decode = pausing(one.setup.decode)
                one.setup.verifier = SlowVerifier(rule="numeric", extraction="hash")
        steps = together(made, lambda c: [step_of(c.collect(step, step)) for step in (1, 2)])
        assert all(step == steps[0] for step in steps)
        assert all(one.state_dict() == made[0].state_dict() for one in made)
        return steps[0]

    found = collected(slow=None)
    assert [collected(slow) for slow in (0, size - 1)] == [found] * 2
    alone = collector(timed(mixed, seconds), rules, problems=PROBLEMS)
    assert [step["groups"] for step in found] == [step_of(alone.collect(step, step))["groups"] for step in (1, 2)]


class SlowVerifier(Verifier):
    """Its workers answer only when they are waited for."""

    def collect(self) -> list[Any]:
        return []

    def drain(self, gives_up: Any = None) -> list[Any]:
        return super().collect()


def pausing(decode: Callable[..., str]) -> Callable[..., str]:
    def decoded(ids: Any) -> str:
        time.sleep(5e-4)
        return decode(ids)

    return decoded


def test_an_engine_that_fails_on_one_rank_ends_the_step_on_all_with_its_name():
    made = [made_for(replace(RULES, num_prompts=8)) for _ in range(3)]
    made[1].setup.engine = FailingEngine(script)
    made[1].setup.engine.failure = RuntimeError("out of memory")
    made[1].setup.engine.sync_weights([], version=0)

    def error_of(one: Collector) -> tuple[str, str]:
        before = one.state_dict()
        with pytest.raises(RuntimeError) as raised:
            one.collect(1, 0)
        assert one.state_dict() == before
        return type(raised.value).__name__, str(raised.value)

    of_others = ("EngineError", "rank 1: RuntimeError: out of memory")
    assert together(made, error_of) == [of_others, ("RuntimeError", "out of memory"), of_others]
