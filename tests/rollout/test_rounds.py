"""Several ranks collect one step in rounds. Here they are threads of one process, each with an engine of its own."""

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Barrier, BrokenBarrierError
from typing import Any

from test_collect import END, RIGHT, RULES, WRONG, collector, indices

from dapo_lit.rollout.collect import CollectedStep, CollectionRules, Collector
from dapo_lit.rollout.ranks import Ranks
from dapo_lit.rollout.records import SampleKey
from dapo_lit.rollout.scripted_engine import ScriptedResponse

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
    rules = replace(RULES, filter_unmixed=False)  # nothing is begun ahead: the price is that of one process too
    alone = [step_of(made_for(rules).collect(1, 1))]
    for size, per_engine in ((2, 1), (2, 2), (4, 2)):
        made = [made_for(rules) for _ in range(size)]
        assert together(made, lambda c: step_of(c.collect(1, 1)), per_engine) == alone * size
