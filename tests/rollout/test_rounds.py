"""Several ranks collect one step in rounds. Here they are threads of one process, each with an engine of its own."""

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from scripted_engine import ScriptedResponse
from test_collect import END, RIGHT, RULES, WRONG, collector, indices
from test_streaming import ForgetfulEngine, SlowEngine, half_done

from dapo_lit.data.order import ProblemOrder
from dapo_lit.engines.samples import SampleKey
from dapo_lit.ranks import Ranks
from dapo_lit.rollout.collect import Collector
from dapo_lit.rollout.dynamic_sampling import CollectionRules
from dapo_lit.rollout.records import CollectedStep
from dapo_lit.rollout.step_collection import LostSampleError, StopRequestedError

PROBLEMS = 12


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
        made[rank].ranks = Threads(rank, len(made), per_engine=per_engine, meeting=meeting)
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
    made[1].decode = lambda ids: "no answer"  # as if its deadlines had passed
    steps = together(made, lambda c: [step_of(c.collect(step, step)) for step in (1, 2)], per_engine=2)
    assert steps[0] == steps[1]
    alone = made_for()
    for got, expected in zip(steps[0], [alone.collect(step, step) for step in (1, 2)], strict=True):
        assert got["groups"] == step_of(expected)["groups"]
        assert got["tokens"] > 0
    assert made[0].state_dict() == made[1].state_dict()


def test_every_token_of_a_round_counts_once_on_every_rank():
    rules = replace(RULES, dynamic_sampling=False)  # nothing is begun ahead: the price is that of one process too
    alone = [step_of(made_for(rules).collect(1, 1))]
    for size, per_engine in ((2, 1), (2, 2), (4, 2)):
        made = [made_for(rules) for _ in range(size)]
        assert together(made, lambda c: step_of(c.collect(1, 1)), per_engine) == alone * size


def test_a_stall_is_told_by_the_rank_that_waits_and_names_its_own_prompts(capsys):
    made = [made_for(replace(RULES, num_prompts=4, dynamic_sampling=False)) for _ in range(2)]
    made[1].engine = SlowEngine(script)
    made[1].engine.sync_weights([], version=0)
    made[1].stall_s = 1e-9
    steps = together(made, lambda c: c.collect(1, 0))
    said = capsys.readouterr().out.splitlines()
    names = ", ".join(sorted(group.problem.id for group in steps[0].generated[1::2]))
    assert said[0].startswith("step 1: no sample has ended for ")
    assert said[0].endswith(f"waiting for 2 prompts: {names}")


def test_samples_that_one_ranks_engine_lost_are_named_by_all():
    made = [made_for(replace(RULES, num_prompts=8)) for _ in range(4)]
    for one in made:
        one.engine = ForgetfulEngine(script)
        one.engine.sync_weights([], version=0)

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
def test_finished_rounds_are_kept_at_a_stop_where_they_could_not_be_sampled_again(size):
    made = [mixed_but([1], num_prompts=3) for _ in range(2)]
    for one, checks in zip(made, ([False, True], [False, False]), strict=True):
        one.engine.reproducible = False
        one.stop_requested = iter(checks).__next__

    def stopped(one: Collector) -> dict[str, Any]:
        with pytest.raises(StopRequestedError):
            one.collect(1, 0)
        return one.state_dict()

    first, second = together(made, stopped)
    assert first == second
    sampled = {group.key(i) for group in first["interrupted"].groups for i in range(2)}
    assert len(sampled) == 6
    resumed = [mixed_but([1], num_prompts=3) for _ in range(size)]
    for one in resumed:
        one.load_state_dict(pickle.loads(pickle.dumps(first)))
    found = together(resumed, lambda c: step_of(c.collect(1, 0)))
    assert not {request.key for one in resumed for request in one.engine.submitted} & sampled
    whole = together([mixed_but([1], num_prompts=3) for _ in range(2)], lambda c: step_of(c.collect(1, 0)))
    assert len(whole[0]["groups"]) == 3
    for step in found:
        assert {key: step[key] for key in ("groups", "generated")} == {
            key: whole[0][key] for key in ("groups", "generated")
        }


def test_a_step_in_rounds_has_no_tail():
    made = [mixed_but([4], num_prompts=10) for _ in range(2)]  # one group is missing after the first round
    steps = together(made, lambda c: c.collect(1, 0))
    assert len(steps[0].accepted) == 10
    assert len(steps[0].generated) == 11
    assert [step.metrics["time/tail_s"] for step in steps] == [0.0, 0.0]


def test_a_group_that_one_process_left_unfinished_goes_on_with_one_of_several():
    before = half_done("all")
    before.collect(1, policy_version=0)
    state = before.state_dict()
    waiting = [group.key(i) for group in state["carried"] for i in range(2)]
    assert len(waiting) == 4
    alone, *made = [half_done("all") for _ in range(3)]
    for one in (alone, *made):
        one.load_state_dict(pickle.loads(pickle.dumps(state)))
        one.engine.sync_weights([], version=1)
    steps = together(made, lambda c: c.collect(2, policy_version=1))
    submitted = [request.key for one in made for request in one.engine.submitted]
    assert sorted(submitted, key=str) == sorted(waiting, key=str)
    expected = step_of(alone.collect(2, policy_version=1))
    assert [step_of(step)["groups"] for step in steps] == [expected["groups"]] * 2
    assert [step.tokens_generated for step in steps] == [4 * 2] * 2  # two of the four tokens were there
    assert made[0].state_dict() == made[1].state_dict()
