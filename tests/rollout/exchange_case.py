"""Steps sampled by several gloo processes; `python exchange_case.py OUT` writes what each rank came to."""

import json
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lit.ranks_case import fork_ranks
from rollout.test_collect import END, RIGHT, RULES, WRONG, collector
from scripted_engine import ScriptedEngine, ScriptedResponse, ScriptedStream

from dapo_lit.engines.protocol import Sample, SampleKey, Sampling
from dapo_lit.ranks import Ranks
from dapo_lit.rollout.collect import Collector
from dapo_lit.rollout.records import CollectedStep

SIZE, SHARED = 4, (1, 2)


def script(key: SampleKey) -> ScriptedResponse:
    """Two thirds of the problems are mixed; lengths differ."""
    number = int(key.problem_id[1:])
    length = 1 + (number + key.step) % 3
    right = number % 3 > 0 and key.sample_index == 0
    return ScriptedResponse((*[END] * (length - 1), RIGHT if right else WRONG), (-0.5,) * length, ends_at=length)


def make_collector() -> Collector:
    return collector(script, replace(RULES, num_prompts=10), problems=30)


def accepted(step: CollectedStep) -> str:
    return repr([(group.index, group.problem.id, group.completions) for group in step.accepted])


def price(step: CollectedStep) -> str:
    untimed = {key: value for key, value in step.metrics.items() if not key.startswith("time/")}
    return repr((untimed, step.tokens_generated))


class Uneven(ScriptedStream):
    """Takes longer for a token on some engines, and many tokens for each answer."""

    pause_s = 0.0
    steps = 0

    def step(self) -> list[Sample]:
        time.sleep(self.pause_s)
        self.steps += 1
        self._engine.calls.append("step")
        return super().step() if self.steps % 5 == 0 else []

    def submit(self, requests: Any) -> None:
        self._engine.calls += [str(request.key) for request in requests]
        super().submit(requests)

    def withdraw(self, keys: Any) -> Any:
        self._engine.calls += [f"without {key}" for key in keys]
        return super().withdraw(keys)


class UnevenEngine(ScriptedEngine):
    def open(self, sampling: Sampling) -> Uneven:
        stream = Uneven(self, sampling.max_response_tokens, self.version)
        stream.pause_s = self.pause_s
        return stream


def exchanged(ranks: Ranks) -> list[list[int]]:
    """Lengths of what every rank sent; the content is checked."""
    found = []
    for number in range(3):
        under_way = ranks.exchange(bytes([ranks.rank + number]) * (1 + 100_000 * ((ranks.rank + number) % ranks.size)))
        while number and not under_way.done():
            time.sleep(1e-3)
        messages = under_way.wait()
        assert all(set(message) == {rank + number} for rank, message in enumerate(messages))
        found.append([len(message) for message in messages])
    return found


def case(out: Path, per_engine: int, reproducible: bool) -> None:
    dist.init_process_group("gloo")
    ranks = Ranks(int(os.environ["RANK"]), SIZE).sharing_engines(per_engine)
    made = make_collector()
    engine = made.setup.engine = UnevenEngine(script, concurrency=4, reproducible=reproducible)
    engine.pause_s, engine.calls = 2e-3 * (ranks.engine % 2) + 1e-3 * (ranks.rank % 2), []
    engine.sync_weights([], version=0)
    made.setup.ranks = ranks
    found: dict[str, Any] = {"exchanged": exchanged(ranks), "any": ranks.any_of_engine(ranks.rank == 3)}
    steps = [made.collect(step, step) for step in (1, 2)]
    found |= {"accepted": [*map(accepted, steps)], "prices": [*map(price, steps)], "calls": engine.calls}
    (out / f"{per_engine}_{reproducible}_{ranks.rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for per_engine in SHARED:
        for reproducible in (True, False):
            name = f"{per_engine} ranks of an engine"
            fork_ranks(SIZE, name, partial(case, Path(sys.argv[1]), per_engine, reproducible))
