"""Ranks that exchange over gloo while their engines decode: four processes, of which two share an engine each.

The test runs this file as a program; `python -m rollout.test_exchange OUT` writes what each rank came to.
"""

import json
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from command_line import run_cli
from lit.ranks_case import fork_ranks
from rollout.test_collect import RULES, collector, two_thirds_mixed
from scripted_engine import ScriptedStream

from dapo_lit.engines.protocol import Sample
from dapo_lit.ranks import Ranks
from dapo_lit.rollout.collect import Collector

SIZE = 4


def make_collector() -> Collector:
    return collector(two_thirds_mixed, replace(RULES, num_prompts=10), problems=30)


def accepted(made: Collector) -> list[str]:
    steps = [made.collect(step, step) for step in (1, 2)]
    return [repr([(group.index, group.problem.id, group.completions) for group in step.accepted]) for step in steps]


class Uneven(ScriptedStream):
    """Takes longer for a token on some engines, and several for each answer; keeps what it is asked for."""

    steps = 0

    def step(self) -> list[Sample]:
        time.sleep(self._engine.pause_s)
        self.steps += 1
        self._engine.calls.append("step")
        return super().step() if self.steps % 5 == 0 else []

    def submit(self, requests: Any) -> None:
        self._engine.calls += [str(request.key) for request in requests]
        super().submit(requests)

    def withdraw(self, keys: Any) -> Any:
        self._engine.calls += [f"without {key}" for key in keys]
        return super().withdraw(keys)


def case(out: Path) -> None:
    dist.init_process_group("gloo")
    ranks = Ranks(int(os.environ["RANK"]), SIZE).sharing_engines(2)
    made = make_collector()
    engine = made.setup.engine
    engine.stream, engine.concurrency, engine.reproducible = Uneven, 4, False
    engine.pause_s, engine.calls = 2e-3 * (ranks.engine % 2) + 1e-3 * (ranks.rank % 2), []
    made.setup.ranks = ranks
    found = {"accepted": accepted(made), "calls": engine.calls}
    (out / f"{ranks.rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every rank came to."""
    out = tmp_path_factory.mktemp("exchange")
    done = run_cli(str(out), cwd=Path(__file__).parents[1], module="rollout.test_exchange")
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(SIZE)]


def test_every_rank_accepts_what_one_alone_accepts(found):
    assert [rank["accepted"] for rank in found] == [accepted(make_collector())] * SIZE


def test_ranks_that_share_an_engine_make_the_same_calls_of_it_in_the_same_order(found):
    calls = [rank["calls"] for rank in found]
    assert calls[0] == calls[1]
    assert calls[2] == calls[3]
    assert calls[0] != calls[2]
    assert calls[0].count("step") > 64


if __name__ == "__main__":
    fork_ranks(SIZE, "exchange", partial(case, Path(sys.argv[1])))
