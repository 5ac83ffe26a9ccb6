"""Completion weights: what weighs the same under which aggregation, and that no split of a mini-batch matters."""

from fractions import Fraction
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_lit.objective.losses import Aggregation, completion_weights

AGGREGATIONS: tuple[Aggregation, ...] = tuple(name for name in get_args(Aggregation) if name != "microbatch")
"""Those that no split of a mini-batch changes."""


def weights(lengths: list[int], groups: list[int], micro_batch: list[int] | None = None, **options: Any) -> list[float]:
    own = None if micro_batch is None else torch.tensor(micro_batch)
    # The dtype by name: a tensor of an empty list would be one of floats.
    counts, index = (torch.tensor(numbers, dtype=torch.int64) for numbers in (lengths, groups))
    result = completion_weights(counts, index, own, **options)
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
    ("lengths", "micro_batch", "expected"),
    [
        ([3, 100], [0, 0], [1 / 103, 1 / 103]),
        ([3, 100], [0, 1], [1 / 6, 1 / 200]),  # depends on the split, as it says
        # Micro-batch 4 has two completions of 3 and 7 tokens, micro-batch 9 one of 5 and a masked one.
        ([3, 5, 7, 0], [4, 9, 4, 9], [2 / (3 * 10), 1 / (3 * 5), 2 / (3 * 10), 0]),
    ],
)
def test_the_mean_of_micro_batch_means_counts_them_by_their_completions_with_loss(
    lengths: list[int], micro_batch: list[int], expected: list[float]
) -> None:
    found = weights(lengths, [0] * len(lengths), micro_batch, aggregation="microbatch", max_response_tokens=100)
    assert found == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(-3, 3)), max_size=9), st.sampled_from(AGGREGATIONS))
def test_weights_equal_the_definition_in_exact_fractions(drawn: list[tuple[int, int]], name: Aggregation) -> None:
    """Of completions with (loss tokens, group), some of them masked."""
    lengths, groups = [length for length, _ in drawn], [group for _, group in drawn]
    expected = [float(slow_weight(lengths, groups, b, name, 40)) for b in range(len(drawn))]
    found = weights(lengths, groups, aggregation=name, max_response_tokens=40)
    assert found == pytest.approx(expected, rel=1e-14)
