"""Flat tensors and micro-batches: every response token once, at the hidden state that predicts it."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import NO_OBSERVATIONS, Sample, SampleKey
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.records import Completion, Group
from dapo_lit.step.batch import TokenBatch, token_batch


def group(index: int, prompt: tuple[int, ...], responses: list[tuple[int, ...]], version: int = 0) -> Group:
    made = Group(1, index, Problem(f"p{index}", "", ""), 0, prompt)
    for i, ids in enumerate(responses):
        sample = Sample(SampleKey(1, f"p{index}", 0, i), ids, tuple(-0.1 * t for t in ids), True, version)
        made.completions.append(Completion(sample, "", Score(False, -1.0), -1.0, 0.0, -1.0))
    return made


def batch(groups: list[Group], version: int = 0) -> TokenBatch:
    tokens = sum(completion.num_tokens for group in groups for completion in group.completions)
    return token_batch(groups, torch.ones(tokens, dtype=torch.bool), version)


def test_a_shared_prompt_worked_by_hand():
    made = batch([group(0, (5, 6), [(7,), (8, 9, 10)]), group(1, (4,), [(3, 2), (1, 0)])])
    assert made.shared_prompt_ratio == (3 + 0 + 2 + 1 + 1) / (2 + 4 + 2 + 2)
    (micro,) = made.micro_batches([0, 1, 2, 3], budget_tokens=100, shares_prompts=True)
    assert micro.input_ids.tolist() == [5, 6, 8, 9, 4, 3, 1]
    # the response (7,) has no token that predicts another: it is no segment
    assert micro.lengths == [2, 2, 1, 1, 1]
    assert micro.prompts == [-1, 0, -1, 2, 2]
    assert micro.packed.positions.tolist() == [[0, 1, 2, 3, 0, 1, 1]]
    assert micro.targets.tolist() == [7, 8, 9, 10, 3, 2, 1, 0]
    assert micro.rows.tolist() == [1, 1, 2, 3, 4, 5, 4, 6]
    assert micro.tokens.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert micro.completions.tolist() == [0, 1, 1, 1, 2, 2, 3, 3]


def test_shared_prefixes_worked_by_hand():
    made = batch([group(0, (5, 6), [(7, 8, 9), (7, 8), (7, 3, 9), (7, 8, 9), (7, 8, 9, 1)]), group(1, (4,), [(3, 2)])])
    (micro,) = made.micro_batches([0, 1, 2, 3, 4, 5], budget_tokens=100, shares_prompts="prefixes")
    # sorted, without their last tokens: 5 6 7; 5 6 7 3; 5 6 7 8 twice; 5 6 7 8 9; then 4 3
    assert micro.input_ids.tolist() == [5, 6, 7, 3, 8, 9, 4, 3]
    assert micro.lengths == [3, 1, 1, 1, 2]
    assert (micro.prompts, micro.continued) == ([-1, 0, 1, 2, -1], [0, 3, 3, 4, 0])
    assert micro.packed.positions.tolist() == [[0, 1, 2, 3, 3, 4, 0, 1]]
    # the attention sees 5 6 7 8 9, 5 6 7 3 and 4 3; the others begin one of these
    assert [(bucket.num_sequences, bucket.width) for bucket in micro.packed.buckets] == [(2, 5), (1, 2)]
    assert micro.completions.tolist() == [1, 1, 2, 2, 2, 0, 0, 0, 3, 3, 3, 4, 4, 4, 4, 5, 5]
    assert micro.targets.tolist() == [7, 8, 7, 3, 9, 7, 8, 9, 7, 8, 9, 7, 8, 9, 1, 3, 2]
    assert micro.rows.tolist() == [1, 2, 1, 2, 3, 1, 2, 4, 1, 2, 4, 1, 2, 4, 5, 6, 7]


lengths = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6)


shared = st.sampled_from([False, True, "prefixes", "branches"])


@given(lengths, st.integers(1, 60), shared)
def test_any_budget_covers_every_response_token_once(lengths, budget, shares):
    made = batch(
        [
            group(i, tuple(range(p)), [tuple(range(10, 10 + a)), (10, *range(19, 19 + b))])
            for i, (p, a, b) in enumerate(lengths)
        ]
    )
    everything = range(len(made.sequences))
    micros = list(made.micro_batches(everything, budget, shares_prompts=shares))
    tokens = torch.cat([m.tokens for m in micros])
    assert sorted(tokens.tolist()) == list(range(len(made.rollout_logprobs)))
    flat = torch.cat([s[p:] for s, p in zip(made.sequences, made.prompt_lengths, strict=True)])
    for micro in micros:
        assert torch.equal(flat[micro.tokens], micro.targets)
        assert torch.equal(made.completion_of_token[micro.tokens], micro.completions)
        # The token whose hidden state predicts: it has the right id, and the right number of tokens before it.
        starts = (made.response_lengths.cumsum(0) - made.response_lengths)[micro.completions]
        place = made.prompt_lengths[micro.completions] + micro.tokens - starts - 1
        assert torch.equal(micro.packed.positions[0][micro.rows], place)
        predicting = [made.sequences[b][i] for b, i in zip(micro.completions, place, strict=True)]
        assert micro.input_ids[micro.rows].tolist() == predicting
        assert len(micro.input_ids) == sum(micro.lengths)
        queries = torch.cat([micro.packed.gather, micro.packed.branch_queries])
        assert queries[micro.packed.restore].tolist() == [*range(len(micro.input_ids))]
        assert len(micro.input_ids) <= budget or len(micro.completions.unique()) == 1


def episodes(prompt: tuple[int, ...], rows: list[list[tuple[int, ...]]]) -> TokenBatch:
    """One group; of each episode its turns and what came between them, in turns."""
    made = group(0, prompt, [sum(row[::2], ()) for row in rows])
    for completion, row in zip(made.completions, rows, strict=True):
        seen = NO_OBSERVATIONS
        for index in range(1, len(row), 2):
            seen = seen.followed_by(row[index], len(sum(row[:index:2], ())))
        completion.sample = replace(completion.sample, observations=seen)
    return batch([made])


def test_an_observation_is_seen_and_is_no_token_of_the_batch_worked_by_hand():
    made = episodes((5, 6), [[(7, 1), (40, 41), (8,)], [(9, 1)]])
    assert [ids.tolist() for ids in made.sequences] == [[5, 6, 7, 1, 40, 41, 8], [5, 6, 9, 1]]
    assert made.response_lengths.tolist() == made.loss_tokens.tolist() == [3, 2]
    (micro,) = made.micro_batches([0, 1], budget_tokens=100)
    assert micro.input_ids.tolist() == [5, 6, 7, 1, 40, 41, 5, 6, 9]
    assert micro.targets.tolist() == [7, 1, 8, 9, 1]
    # 8 is predicted after 41, the last token of the observation
    assert micro.rows.tolist() == [1, 2, 5, 7, 8]
    assert micro.tokens.tolist() == [0, 1, 2, 3, 4]
    assert micro.completions.tolist() == [0, 0, 0, 1, 1]


turns = st.lists(st.lists(st.integers(20, 22), max_size=3), max_size=3)


@given(st.lists(turns, min_size=1, max_size=4), st.integers(1, 60), shared)
def test_any_budget_covers_the_policys_tokens_of_every_episode_and_no_others(observed, budget, shares):
    rows = [[(b + 10, 1)[b % 3 :], *(part for seen in between for part in (tuple(seen), (b % 2 + 10, 1)))]
            for b, between in enumerate(observed)]  # fmt: skip
    made = episodes((5, 6), rows)
    policy = [token for row in rows for token in sum(row[::2], ())]
    micros = list(made.micro_batches(range(len(rows)), budget, shares_prompts=shares))
    tokens = torch.cat([m.tokens for m in micros])
    assert sorted(tokens.tolist()) == list(range(len(policy))) == list(range(len(made.rollout_logprobs)))
    for micro in micros:
        assert [policy[token] for token in micro.tokens] == micro.targets.tolist()
        assert torch.equal(made.completion_of_token[micro.tokens], micro.completions)
        for row, token, b in zip(micro.rows, micro.tokens, micro.completions, strict=True):
            place = int(micro.packed.positions[0][row])  # of the token before it in the whole row
            own = int(token - made.response_lengths[:b].sum())
            turn = next(i for i in range(0, len(rows[b]), 2) if own < len(sum(rows[b][: i + 1 : 2], ())))
            assert (made.sequences[b][place], made.sequences[b][place + 1]) == (micro.input_ids[row], policy[token])
            assert place == 2 + own + sum(map(len, rows[b][1:turn:2])) - 1


def test_an_observation_without_tokens_changes_nothing():
    plain, empty = (episodes((5, 6), [row, [(9, 1)]]) for row in ([(7, 1, 8)], [(7, 1), (), (8,)]))
    assert empty.places is None
    one, other = (next(made.micro_batches([0, 1], 100)) for made in (plain, empty))
    for name in ("input_ids", "rows", "targets", "tokens", "completions"):
        assert torch.equal(getattr(one, name), getattr(other, name))


def minibatches(num_groups: int, per_update: int) -> list[list[int]]:
    made = batch([group(i, (1,), [(2,), (3,)]) for i in range(num_groups)])
    return list(made.minibatches(per_update, seed=3))


def test_a_batch_smaller_than_planned_is_split_evenly_over_its_updates():
    updates = minibatches(9, per_update=8)
    assert [len(completions) // 2 for completions in updates] == [5, 4]
    assert sorted(b for completions in updates for b in completions) == list(range(18))
    assert [len(completions) // 2 for completions in minibatches(11, per_update=4)] == [4, 4, 3]
    assert [len(completions) // 2 for completions in minibatches(3, per_update=8)] == [3]


def test_a_full_batch_is_split_into_mini_batches_of_the_planned_size():
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    expected = [sorted(2 * g + i for g in chosen for i in (0, 1)) for chosen in order.reshape(3, 4).tolist()]
    assert minibatches(12, per_update=4) == expected


def test_of_a_response_that_went_on_with_newer_weights_the_first_tokens_alone_are_stale():
    made = group(0, (1,), [(2, 3, 4)], version=5)
    made.completions[0].sample = replace(made.completions[0].sample, earlier_versions=((4, 2),))
    assert batch([made], version=5).fresh.tolist() == [False, False, True]
