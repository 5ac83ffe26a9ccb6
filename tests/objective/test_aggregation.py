"""Completion weights: what weighs the same under which aggregation, and that no split of a mini-batch matters."""

import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_losses import losses_of
from torch import Tensor

from dapo_lit.objective.losses import Aggregation, clipped_policy_loss, completion_weights

AGGREGATIONS: tuple[Aggregation, ...] = tuple(name for name in get_args(Aggregation) if name != "microbatch")
"""Those that no split of a mini-batch changes."""
MAX_RESPONSE_TOKENS = 40


def weights(
    lengths: list[int], groups: list[int], aggregation: Aggregation, max_response_tokens: int = 100
) -> list[float]:
    result = completion_weights(
        torch.tensor(lengths),
        torch.tensor(groups),
        aggregation=aggregation,
        max_response_tokens=max_response_tokens,
    )
    assert result.dtype == torch.float64
    return result.tolist()


def slow_weight(lengths: list[int], groups: list[int], b: int, aggregation: Aggregation, limit: int) -> Fraction:
    """The weight of a token of completion b, from the definition, in exact fractions."""
    if lengths[b] == 0:
        return Fraction(0)
    num_completions = len([n for n in lengths if n > 0])
    num_groups = len({g for g, n in zip(groups, lengths, strict=True) if n > 0})
    group_tokens = sum(n for g, n in zip(groups, lengths, strict=True) if g == groups[b])
    return {
        "minibatch": Fraction(1, sum(lengths)),
        "group": Fraction(1, num_groups * group_tokens),
        "sample": Fraction(1, num_completions * lengths[b]),
        "constant": Fraction(1, num_completions * limit),
    }[aggregation]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("minibatch", [1 / 63] * 4),  # 3 + 10 + 20 + 30 = 63
        ("group", [1 / 63] * 4),  # one group: the same
        ("sample", [1 / 12, 1 / 40, 1 / 80, 1 / 120]),  # 1 / (4 n)
        ("constant", [1 / 400] * 4),  # 1 / (4 * 100)
    ],
)
def test_token_weights_of_a_group_with_lengths_3_10_20_30(aggregation: Aggregation, expected: list[float]) -> None:
    assert weights([3, 10, 20, 30], [0, 0, 0, 0], aggregation) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("minibatch", [1 / 110, 1 / 110]),
        ("group", [1 / 110, 1 / 110]),
        ("sample", [1 / 20, 1 / 200]),
        ("constant", [1 / 200, 1 / 200]),
    ],
)
def test_token_weights_of_a_group_with_lengths_10_and_100(aggregation: Aggregation, expected: list[float]) -> None:
    assert weights([10, 100], [7, 7], aggregation) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("minibatch", [1 / 173] * 6),
        ("group", [1 / 126] * 4 + [1 / 220] * 2),  # 1 / (2 * 63) and 1 / (2 * 110)
        ("sample", [1 / 18, 1 / 60, 1 / 120, 1 / 180, 1 / 60, 1 / 600]),  # 1 / (6 n)
        ("constant", [1 / 600] * 6),
    ],
)
def test_token_weights_of_both_groups_together(aggregation: Aggregation, expected: list[float]) -> None:
    assert weights([3, 10, 20, 30, 10, 100], [5, 5, 5, 5, 2, 2], aggregation) == pytest.approx(expected, rel=1e-15)


def test_at_token_level_3_tokens_of_loss_1_and_100_of_loss_0_give_3_of_103_and_not_a_half() -> None:
    token_losses = [1.0, 0.0]
    lengths = [3, 100]

    def loss(aggregation: Aggregation) -> float:
        return sum(
            w * n * x for w, n, x in zip(weights(lengths, [0, 0], aggregation), lengths, token_losses, strict=True)
        )

    assert loss("minibatch") == pytest.approx(3 / 103)
    assert round(loss("minibatch"), 3) == 0.029
    assert loss("sample") == pytest.approx(0.50)


def test_a_masked_completion_weighs_nothing_and_counts_in_no_denominator() -> None:
    # The second group lost all its completions: it is no group any more.
    lengths, groups = [4, 0, 6, 0, 0], [0, 0, 1, 2, 2]
    assert weights(lengths, groups, "minibatch") == pytest.approx([1 / 10, 0, 1 / 10, 0, 0])
    assert weights(lengths, groups, "group") == pytest.approx([1 / 8, 0, 1 / 12, 0, 0])
    assert weights(lengths, groups, "sample") == pytest.approx([1 / 8, 0, 1 / 12, 0, 0])
    assert weights(lengths, groups, "constant") == pytest.approx([1 / 200, 0, 1 / 200, 0, 0])


def micro_batch_weights(lengths: list[int], micro_batch: list[int]) -> list[float]:
    return completion_weights(
        torch.tensor(lengths),
        torch.zeros(len(lengths), dtype=torch.int64),
        torch.tensor(micro_batch),
        aggregation="microbatch",
        max_response_tokens=100,
    ).tolist()


def test_the_mean_of_micro_batch_means_depends_on_the_split_as_it_says() -> None:
    def loss(micro_batch: list[int]) -> float:
        first, _ = micro_batch_weights([3, 100], micro_batch)
        return 3 * first  # three tokens of loss 1, a hundred of loss 0

    assert loss([0, 0]) == pytest.approx(3 / 103)
    assert loss([0, 1]) == pytest.approx(1 / 2)


def test_micro_batches_count_by_their_completions_with_loss() -> None:
    # Micro-batch 4 has two completions of 3 and 7 tokens, micro-batch 9 one of 5 and a masked one.
    found = micro_batch_weights([3, 5, 7, 0], [4, 9, 4, 9])
    assert found == pytest.approx([2 / (3 * 10), 1 / (3 * 5), 2 / (3 * 10), 0])
    assert sum(w * n for w, n in zip(found, [3, 5, 7, 0], strict=True)) == pytest.approx(1)


def test_micro_batch_means_without_micro_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="needs micro_batch"):
        weights([1, 2], [0, 0], "microbatch")


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_batch_without_loss_tokens_weighs_zero_and_has_loss_and_gradient_zero(aggregation: Aggregation) -> None:
    result = torch.tensor(weights([0, 0, 0], [0, 0, 1], aggregation))
    assert result.tolist() == [0.0, 0.0, 0.0]
    logprobs = torch.full((3, 2), -1.0, requires_grad=True)
    token_loss = losses_of(
        clipped_policy_loss, logprobs, logprobs.detach(), torch.ones(3, 1), clip_low=0.2, clip_high=0.28
    )
    loss = (token_loss * result[:, None]).sum()
    loss.backward()
    assert loss.item() == 0.0
    assert logprobs.grad is not None
    assert torch.equal(logprobs.grad, torch.zeros(3, 2))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_an_empty_batch_has_no_weights(aggregation: Aggregation) -> None:
    assert weights([], [], aggregation) == []


def test_unequal_shapes_a_limit_of_zero_and_an_unknown_aggregation_are_refused() -> None:
    ones = torch.ones(3, dtype=torch.long)
    with pytest.raises(ValueError, match="loss_tokens and group_index"):
        completion_weights(ones, ones[:2], aggregation="sample", max_response_tokens=8)
    with pytest.raises(ValueError, match="loss_tokens and group_index"):
        completion_weights(ones[None], ones[None], aggregation="sample", max_response_tokens=8)
    with pytest.raises(ValueError, match="max_response_tokens"):
        completion_weights(ones, ones, aggregation="constant", max_response_tokens=0)
    with pytest.raises(ValueError, match="aggregation"):
        completion_weights(ones, ones, aggregation="token", max_response_tokens=8)  # type: ignore[arg-type]


@dataclass
class MiniBatch:
    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    lengths: list[int]
    loss_tokens: list[int]
    groups: list[int]
    micro_batches: list[list[int]]


@st.composite
def mini_batches(draw: st.DrawFn) -> MiniBatch:
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=9))
    num = len(lengths)
    groups = draw(st.lists(st.integers(-3, 3), min_size=num, max_size=num))
    masked = draw(st.lists(st.booleans(), min_size=num, max_size=num))
    order = draw(st.permutations(range(num)))
    cuts = sorted(draw(st.sets(st.integers(1, num), max_size=num)) | {0, num})
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    logprobs, old_logprobs = torch.randn(2, num, max(lengths), generator=generator, dtype=torch.float64) / 2
    return MiniBatch(
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        advantages=torch.randn(num, generator=generator, dtype=torch.float64),
        lengths=lengths,
        loss_tokens=[0 if m else n for n, m in zip(lengths, masked, strict=True)],
        groups=groups,
        micro_batches=[list(order[a:b]) for a, b in itertools.pairwise(cuts)],
    )


def loss_of_rows(batch: MiniBatch, logprobs: Tensor, weight: Tensor, rows: list[int]) -> Tensor:
    """The part of the loss that the padded completions `rows` contribute."""
    token_loss = losses_of(
        clipped_policy_loss,
        logprobs[rows],
        batch.old_logprobs[rows],
        batch.advantages[rows, None],
        clip_low=0.2,
        clip_high=0.28,
    )
    loss_tokens = torch.tensor([batch.loss_tokens[b] for b in rows])
    mask = torch.arange(logprobs.shape[1]) < loss_tokens[:, None]
    return (torch.where(mask, token_loss, 0.0) * weight[rows, None]).sum()


@settings(max_examples=60, deadline=None)
@given(mini_batches(), st.sampled_from(AGGREGATIONS))
def test_loss_and_gradient_are_the_same_for_any_split_into_micro_batches(
    batch: MiniBatch, aggregation: Aggregation
) -> None:
    weight = torch.tensor(
        weights(batch.loss_tokens, batch.groups, aggregation, MAX_RESPONSE_TOKENS), dtype=torch.float64
    )
    whole = batch.logprobs.clone().requires_grad_()
    loss = loss_of_rows(batch, whole, weight, list(range(len(batch.lengths))))
    loss.backward()
    split = batch.logprobs.clone().requires_grad_()
    total = 0.0
    for rows in batch.micro_batches:
        part = loss_of_rows(batch, split, weight, rows)
        part.backward()
        total += part.item()
    assert total == pytest.approx(loss.item(), abs=1e-12)
    torch.testing.assert_close(split.grad, whole.grad, rtol=0, atol=1e-13)


@settings(max_examples=60, deadline=None)
@given(mini_batches(), st.sampled_from(AGGREGATIONS))
def test_the_loss_equals_the_definition_in_a_slow_loop(batch: MiniBatch, aggregation: Aggregation) -> None:
    weight = weights(batch.loss_tokens, batch.groups, aggregation, MAX_RESPONSE_TOKENS)
    expected = 0.0
    for b, num_tokens in enumerate(batch.loss_tokens):
        exact = slow_weight(batch.loss_tokens, batch.groups, b, aggregation, MAX_RESPONSE_TOKENS)
        assert weight[b] == pytest.approx(float(exact), rel=1e-14)
        for t in range(num_tokens):
            ratio = (batch.logprobs[b, t] - batch.old_logprobs[b, t]).exp().item()
            advantage = batch.advantages[b].item()
            expected -= float(exact) * min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
    rows = list(range(len(batch.lengths)))
    assert loss_of_rows(batch, batch.logprobs, torch.tensor(weight, dtype=torch.float64), rows).item() == pytest.approx(
        expected, abs=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(mini_batches(), st.sampled_from(AGGREGATIONS))
def test_a_mean_over_tokens_has_weights_that_sum_to_one(batch: MiniBatch, aggregation: Aggregation) -> None:
    weight = weights(batch.loss_tokens, batch.groups, aggregation, MAX_RESPONSE_TOKENS)
    total = sum(w * n for w, n in zip(weight, batch.loss_tokens, strict=True))
    if not any(batch.loss_tokens):
        assert total == 0.0
    elif aggregation == "constant":  # mean length over the limit
        carrying = [n for n in batch.loss_tokens if n > 0]
        assert total == pytest.approx(sum(carrying) / len(carrying) / MAX_RESPONSE_TOKENS)
    else:
        assert total == pytest.approx(1.0)
