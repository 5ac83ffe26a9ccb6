"""Several ranks sample one step together. Here they are threads of one process, each with an engine of its own."""

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from threading import Semaphore
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedStream
from test_collect import RULES, collector, indices, two_thirds_mixed
from test_streaming import PROBLEMS, WORK, half_done, timed
from thread_ranks import ThreadRanks, on_ranks

from dapo_lit.engines.protocol import Sample, SampleRequest
from dapo_lit.ranks import is_raised_by_all
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rollout import rank_sampling
from dapo_lit.rollout.collect import Collector
from dapo_lit.rollout.dynamic_sampling import CollectionRules
from dapo_lit.rollout.records import CollectedStep
from dapo_lit.rollout.step_collection import LostSampleError


def together(made: list[Collector], act: Callable[[Collector], Any], per_engine: int = 1) -> list[Any]:
    """What `act` gives on every rank."""

    def on_rank(ranks: ThreadRanks) -> Any:
        made[ranks.rank].setup.ranks = ranks
        return act(made[ranks.rank])

    return on_ranks(len(made), on_rank, per_engine)


def step_of(collected: CollectedStep) -> dict[str, Any]:
    metrics = {key: value for key, value in collected.metrics.items() if not key.startswith("time/")}
    groups = [(g.step, g.index, g.problem.id, g.completions) for g in collected.accepted]
    return {"groups": groups, "generated": indices(collected.generated), "tokens": collected.tokens_generated} | metrics


def made_for(rules: CollectionRules = RULES) -> Collector:
    return collector(two_thirds_mixed, rules, problems=PROBLEMS)


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


class Forgetful(ScriptedStream):
    """Loses what it is given of one problem."""

    def submit(self, requests: list[SampleRequest]) -> None:
        super().submit([r for r in requests if r.key.problem_id != "p3"])


class Failing(ScriptedStream):
    """Fails after the first sample."""

    def step(self) -> list[Sample]:
        if self._engine.yielded:
            raise RuntimeError("out of memory")
        return super().step()


@pytest.mark.parametrize(("counts", "total"), [((3, 4), 7), ((3, None), None)])
def test_preemptions_count_once_for_each_engine_and_are_not_known_if_one_does_not_say(counts, total):
    made = [made_for() for _ in range(4)]
    for rank, one in enumerate(made):
        one.setup.engine.preemptions = counts[rank // 2]
    assert together(made, lambda c: c.collect(1, 1).metrics["perf/preemptions"], per_engine=2) == [total] * 4


def error_of(one: Collector) -> tuple[str, str]:
    before = one.state_dict()
    with pytest.raises(RuntimeError) as raised:
        one.collect(1, 0)
    assert one.state_dict() == before
    # Each in its own words; a checkpoint of all of them is saved only if all are here.
    assert is_raised_by_all(raised.value) or isinstance(raised.value, LostSampleError)
    return type(raised.value).__name__, str(raised.value)


def test_samples_that_one_ranks_engine_lost_are_named_by_all():
    made = [made_for(replace(RULES, num_prompts=8)) for _ in range(4)]
    for one in made:
        one.setup.engine.stream = Forgetful
    [(kind, message)] = set(together(made, error_of))
    assert kind == "LostSampleError"
    assert message.endswith("p3")


def test_an_engine_that_fails_on_one_rank_ends_the_step_on_all_with_its_name():
    made = [made_for(replace(RULES, num_prompts=8)) for _ in range(3)]
    made[1].setup.engine.stream = Failing
    of_others = ("EngineError", "rank 1: RuntimeError: out of memory")
    assert together(made, error_of) == [of_others, ("RuntimeError", "out of memory"), of_others]


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
    # The first rank has the first and the third group. It takes in that the first has ended one tick after it has: a
    # sample of the third has ended then, and the other is a token before its end.
    assert made[0].state_dict() == made[1].state_dict()
    [second, third] = made[0].carried
    assert second.finished
    assert list(third.scored) == [0]
    assert len(third.partial[1].response_ids) == 3
    assert [step.tokens_generated for step in steps] == [2 * 4 + 2 * 4 + 4 + 3] * 2


class Halting(ScriptedStream):
    """Of four ranks on two engines: the first engine's first step ends after a hundred of the second, which has no
    sample before."""

    def step(self) -> list[Sample]:
        engine = self._engine
        if engine.halts:
            assert engine.hundred.acquire(timeout=20), "an engine waits for a slower one"
            engine.hundred.release()
        else:
            engine.steps += 1
            if engine.steps == 100:
                engine.hundred.release()
            if engine.steps < 100:
                return []
        return super().step()


@pytest.mark.parametrize("per_engine", [1, 2])
def test_no_engine_waits_for_the_step_of_a_slower_one(per_engine, monkeypatch):
    """An exchange is under way at the time, in which the second engine says how far it is."""
    monkeypatch.setattr(rank_sampling, "TICK_S", 0.0)
    made, hundred = [made_for() for _ in range(2 * per_engine)], Semaphore(0)
    for rank, one in enumerate(made):
        engine = one.setup.engine
        engine.stream, engine.reproducible = Halting, False
        engine.halts, engine.hundred, engine.steps = rank < per_engine, hundred, 0
    steps = together(made, lambda c: step_of(c.collect(1, 1)), per_engine)
    expected = step_of(made_for().collect(1, 1))["groups"]
    assert [step["groups"] for step in steps] == [expected] * len(made)


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
