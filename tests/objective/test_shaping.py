"""Overlong shaping at every boundary of Eq. 13, and the two booleans."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_lit.objective.advantages import group_advantages
from dapo_lit.objective.losses import Aggregation, completion_weights
from dapo_lit.objective.shaping import overlong_filtering, soft_overlong_punishment


def equation_13(length: int, l_max: int, l_cache: int) -> float:
    if length <= l_max - l_cache:
        return 0.0
    if length <= l_max:
        return ((l_max - l_cache) - length) / l_cache
    return -1.0


@pytest.mark.parametrize(
    ("length", "penalty"),
    [
        (0, 0.0),
        (1, 0.0),
        (16_383, 0.0),
        (16_384, 0.0),
        (16_385, -1 / 4096),
        (18_432, -0.5),
        (20_479, -4095 / 4096),
        (20_480, -1.0),
        (20_481, -1.0),
        (1_000_000, -1.0),
    ],
)
def test_the_papers_lengths(length: int, penalty: float) -> None:
    result = soft_overlong_punishment(torch.tensor([length]), max_response_tokens=20_480, cache_tokens=4096)
    assert result.dtype == torch.float64
    assert result.item() == penalty  # exactly: the cache is a power of two


def test_the_factor_scales_the_penalty_and_the_shape_is_kept() -> None:
    lengths = torch.tensor([[15, 16], [18, 20]])
    result = soft_overlong_punishment(lengths, max_response_tokens=20, cache_tokens=5, factor=0.5)
    torch.testing.assert_close(result, torch.tensor([[0.0, -0.1], [-0.3, -0.5]], dtype=torch.float64))
    off = soft_overlong_punishment(lengths, max_response_tokens=20, cache_tokens=5, factor=0.0)
    assert torch.equal(off, torch.zeros(2, 2, dtype=torch.float64))


def test_no_penalty_is_zero_without_a_sign() -> None:
    result = soft_overlong_punishment(torch.tensor([3]), max_response_tokens=20, cache_tokens=5)
    assert not torch.signbit(result).any()


def test_without_a_cache_only_what_exceeds_the_limit_is_punished() -> None:
    result = soft_overlong_punishment(torch.tensor([1, 19, 20, 21, 40]), max_response_tokens=20, cache_tokens=0)
    assert result.tolist() == [0.0, 0.0, 0.0, -1.0, -1.0]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 50_000))
def test_it_equals_the_formula_at_and_around_every_boundary(data: st.DataObject, l_max: int) -> None:
    l_cache = data.draw(st.integers(0, l_max - 1))
    factor = data.draw(st.floats(0, 5))
    boundaries = (0, l_max - l_cache, l_max - l_cache // 2, l_max)
    lengths = sorted({max(0, boundary + offset) for boundary in boundaries for offset in (-1, 0, 1)})
    result = soft_overlong_punishment(
        torch.tensor(lengths), max_response_tokens=l_max, cache_tokens=l_cache, factor=factor
    ).tolist()
    assert result == pytest.approx([factor * equation_13(n, l_max, l_cache) for n in lengths], rel=1e-12, abs=1e-15)
    assert all(shorter >= longer for shorter, longer in itertools.pairwise(result))


@pytest.mark.parametrize("cache_tokens", [-1, 20, 21])
def test_a_cache_that_does_not_fit_below_the_limit_is_named(cache_tokens: int) -> None:
    with pytest.raises(ValueError, match="cache_tokens"):
        soft_overlong_punishment(torch.tensor([3]), max_response_tokens=20, cache_tokens=cache_tokens)


def test_a_negative_factor_is_named() -> None:
    with pytest.raises(ValueError, match="factor"):
        soft_overlong_punishment(torch.tensor([3]), max_response_tokens=20, cache_tokens=5, factor=-1.0)


def test_the_filter_masks_the_truncated_alone() -> None:
    assert overlong_filtering(torch.tensor([False, True, False])).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_a_mask_that_is_not_boolean_is_named(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="truncated must be boolean"):
        overlong_filtering(torch.tensor([1, 0]).to(dtype))


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("minibatch", [1 / 7, 1 / 7, 0]), ("sample", [1 / 10, 1 / 4, 0])]
)
def test_a_filtered_completion_stays_in_its_groups_baseline_and_leaves_every_denominator(
    aggregation: Aggregation, expected: list[float]
) -> None:
    # Rewards 1, -1, -1 where the last is truncated: mean -1/3. Without it the mean would be 0.
    advantages = group_advantages(torch.tensor([[1.0, -1.0, -1.0]], dtype=torch.float64), scale_by_std=False)
    assert advantages[0].tolist() == pytest.approx([4 / 3, -2 / 3, -2 / 3])
    loss_tokens = torch.tensor([5, 2, 8]) * overlong_filtering(torch.tensor([False, False, True]))
    weight = completion_weights(
        loss_tokens, torch.zeros(3, dtype=torch.long), aggregation=aggregation, max_response_tokens=8
    )
    assert weight.tolist() == pytest.approx(expected)
