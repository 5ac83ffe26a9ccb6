"""Ranks that exchange over gloo while their engines decode: four processes (exchange_case.py)."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run_cli
from rollout.exchange_case import accepted, make_collector


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, bool], list[dict[str, Any]]]:
    """(ranks of an engine, reproducible) -> what every rank came to."""
    out = tmp_path_factory.mktemp("exchange")
    done = run_cli(str(out), cwd=Path(__file__).parents[1], module="rollout.exchange_case")
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        (per_engine, reproducible): [
            json.loads((out / f"{per_engine}_{reproducible}_{rank}.json").read_text()) for rank in range(4)
        ]
        for per_engine in (1, 2)
        for reproducible in (True, False)
    }


def test_messages_of_unequal_lengths_reach_every_rank(found):
    expected = [[1 + 100_000 * ((rank + number) % 4) for rank in range(4)] for number in range(3)]
    assert [rank["exchanged"] for ranks in found.values() for rank in ranks] == [expected] * 16


def test_a_word_of_one_rank_reaches_the_ranks_of_its_engine_and_no_others(found):
    for (per_engine, _), ranks in found.items():
        assert [rank["any"] for rank in ranks] == [False, False, per_engine == 2, True]


def test_every_rank_comes_to_the_same_steps_and_accepts_what_one_alone_accepts(found):
    alone = make_collector()
    expected = [accepted(alone.collect(step, step)) for step in (1, 2)]
    for ranks in found.values():
        assert [rank["accepted"] for rank in ranks] == [expected] * 4
        assert [rank["prices"] for rank in ranks] == [ranks[0]["prices"]] * 4


@pytest.mark.parametrize("reproducible", [True, False])
def test_ranks_that_share_an_engine_make_the_same_calls_of_it_in_the_same_order(found, reproducible):
    calls = [rank["calls"] for rank in found[2, reproducible]]
    assert calls[0] == calls[1]
    assert calls[2] == calls[3]
    assert calls[0] != calls[2]
    assert calls[0].count("step") > 64
