"""1, 2 and 4 processes are one run: the same groups, losses, gradients, metrics and weights.

The case (ranks_case.py) trains two steps with unequal lengths, dynamic sampling and carried-over groups, and fewer
micro-batches on some ranks than on others.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch

from dapo_lit.data.problem import Problem
from dapo_lit.objective.losses import Aggregation
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.ranks import Ranks, packed, unpacked
from dapo_lit.rollout.records import Completion, Group, Sample, SampleKey

SIZES = (2, 4)
CASES = ("tied", "untied")
LOSSES = [f"{aggregation}, filtered {filtered}" for aggregation in get_args(Aggregation) for filtered in (False, True)]
LOSSES.append("gmpo on forking tokens")


@pytest.fixture(scope="module")
def runs(cache, tmp_path_factory) -> dict:
    """(case, size) -> what every rank came to."""
    out = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).parent / "ranks_case.py"
    done = subprocess.run(
        [sys.executable, script, out], capture_output=True, text=True, timeout=600, check=False, env={**os.environ}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        (case, size): [torch.load(out / f"{case}_{size}_{rank}.pt", weights_only=False) for rank in range(size)]
        for case in CASES
        for size in (1, *SIZES)
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", SIZES)
def test_the_accepted_groups_and_their_tokens_are_those_of_one_process_on_every_rank(runs, case, size):
    (alone,) = runs[case, 1]
    for step, record in alone["steps"].items():
        assert len({len(ids) for ids in record["ids"]}) > 3  # unequal lengths, or the test says nothing
        for rank in runs[case, size]:
            assert rank["steps"][step]["groups"] == record["groups"]
            assert rank["steps"][step]["ids"] == record["ids"]
            assert rank["steps"][step]["collected"] == record["collected"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_and_gradient_are_those_of_one_process_for_every_aggregation(runs, case, size, loss):
    (alone,) = runs[case, 1]
    expected_loss, expected = alone["steps"][1][loss]
    assert expected.norm() > 1e-3
    for rank in runs[case, size]:
        found_loss, found = rank["steps"][1][loss]
        assert found_loss == pytest.approx(expected_loss, abs=1e-5)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_the_aggregations_differ_so_that_one_taken_for_another_would_show(runs):
    (alone,) = runs["tied", 1]
    gradients = [alone["steps"][1][loss][1] for loss in LOSSES]
    for first, one in enumerate(gradients):
        for other in gradients[first + 1 :]:
            assert (one - other).norm() > 1e-3 * one.norm()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", SIZES)
def test_metrics_evaluations_and_weights_after_two_steps_are_those_of_one_process(runs, case, size):
    (alone,) = runs[case, 1]
    for rank in runs[case, size]:
        for step, record in alone["steps"].items():
            metrics = rank["steps"][step]["metrics"]
            assert metrics.keys() == record["metrics"].keys()
            for key, value in record["metrics"].items():
                same = metrics[key] is None if value is None else metrics[key] == pytest.approx(value, 1e-4, 1e-6)
                assert same, (key, value, metrics[key])
            for name, tensor in record["weights"].items():
                torch.testing.assert_close(rank["steps"][step]["weights"][name], tensor, rtol=1e-4, atol=2e-5)
        evaluated = [{k: v for k, v in row.items() if k.startswith("eval/")} for row in rank["rows"]]
        assert evaluated[0] == pytest.approx(
            {k: v for k, v in alone["rows"][0].items() if k.startswith("eval/")}, rel=1e-6
        )
        assert [row["rollout/accuracy"] for row in rank["rows"][1:]] == [
            row["rollout/accuracy"] for row in alone["rows"][1:]
        ]


def test_groups_are_dealt_out_in_submission_order_and_none_is_left_out():
    groups = [Group(1, index, Problem("p", "?", "1"), 0, (1,)) for index in range(7)]
    dealt = [Ranks(rank, 3).own(groups) for rank in range(3)]
    assert dealt == [[0, 3, 6], [1, 4], [2, 5]]


def test_completions_survive_the_exchange_bit_for_bit():
    def completion(index: int, ids: tuple[int, ...]) -> Completion:
        logprobs = tuple(-0.1 / 3 * i for i in ids)
        sample = Sample(SampleKey(1, "p", 0, index), ids, logprobs, finished=True, policy_version=2)
        return Completion(sample, "text", Score(1.0, True, "1"), 1.0, 0.0, 1.0)

    given = [completion(0, (5,)), completion(1, (7, 8, 9)), completion(2, (2**31 - 1, 3))]
    assert unpacked(packed(given)) == given
