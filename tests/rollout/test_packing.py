"""Flat tensors and micro-batches: every response token once, at the hidden state that predicts it."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dapo_lit.data.problem import Problem
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.packing import TokenBatch, token_batch
from dapo_lit.rollout.records import Completion, Group, Sample, SampleKey


def group(index: int, prompt: tuple[int, ...], responses: list[tuple[int, ...]], version: int = 0) -> Group:
    made = Group(1, index, Problem(f"p{index}", "", ""), 0, prompt)
    for i, ids in enumerate(responses):
        sample = Sample(SampleKey(1, f"p{index}", 0, i), ids, tuple(-0.1 * t for t in ids), True, version)
        made.completions.append(Completion(sample, "", Score(False, -1.0), -1.0, 0.0, -1.0))
    return made


def batch(groups: list[Group], version: int = 0) -> TokenBatch:
    shape = (len(groups), len(groups[0].completions))
    return token_batch(groups, torch.ones(shape, dtype=torch.bool), version)


def test_two_completions_of_different_length_worked_by_hand():
    made = batch([group(0, (5, 6), [(7,), (8, 9, 10)])])
    (micro,) = made.micro_batches([0, 1], budget_tokens=100)
    # the longer one comes first; the last token of each, 10 and 7, predicts nothing
    assert micro.input_ids.tolist() == [5, 6, 8, 9, 5, 6]
    assert micro.lengths == [4, 2]
    assert micro.rows.tolist() == [1, 2, 3, 5]
    assert micro.targets.tolist() == [8, 9, 10, 7]
    assert micro.tokens.tolist() == [1, 2, 3, 0]
    assert micro.completions.tolist() == [1, 1, 1, 0]


lengths = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6)


@given(lengths, st.integers(1, 60))
def test_any_budget_covers_every_response_token_once(lengths, budget):
    made = batch(
        [
            group(i, tuple(range(p)), [tuple(range(10, 10 + a)), tuple(range(20, 20 + b))])
            for i, (p, a, b) in enumerate(lengths)
        ]
    )
    micros = list(made.micro_batches(range(len(made.sequences)), budget))
    tokens = torch.cat([m.tokens for m in micros])
    assert sorted(tokens.tolist()) == list(range(len(made.rollout_logprobs)))
    for micro in micros:
        assert torch.allclose(made.rollout_logprobs[micro.tokens], -0.1 * micro.targets)
        assert len(micro.input_ids) == sum(micro.lengths)
        assert len(micro.lengths) == 1 or sum(micro.lengths) <= budget
        follows = micro.rows + 1
        inside = follows < len(micro.input_ids)
        same = micro.layout("cpu").positions[0][follows[inside]] > 0
        assert (micro.input_ids[follows[inside]] == micro.targets[inside])[same].all()


def test_carried_over_completions_are_marked_as_not_fresh():
    made = batch([group(0, (1,), [(2,), (3,)], version=4), group(1, (1,), [(2,), (3,)], version=5)], version=5)
    assert made.fresh.tolist() == [False, False, True, True]


def test_masked_completions_have_no_loss_tokens():
    groups = [group(0, (1,), [(2, 3), (4, 5, 6)])]
    made = token_batch(groups, torch.tensor([[True, False]]), 0)
    assert made.loss_tokens.tolist() == [2, 0]
    assert made.response_lengths.tolist() == [2, 3]


def test_a_sequence_above_the_budget_has_a_micro_batch_of_its_own():
    made = batch([group(0, (1,), [tuple(range(2, 12)), (3,)])])
    assert [m.lengths for m in made.micro_batches([0, 1], budget_tokens=4)] == [[10], [1]]
    assert made.rewards.tolist() == [-1, -1]
