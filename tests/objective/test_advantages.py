"""Group-relative advantages against numbers worked out by hand, a slow loop, and their invariances."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dapo_lit.objective.advantages import group_advantages, leave_one_out_advantages, whiten

reward_values = st.floats(-2, 2, allow_nan=False).map(lambda x: round(x, 3))


@st.composite
def reward_batches(draw: st.DrawFn) -> Tensor:
    size = draw(st.integers(2, 8))
    rows = draw(st.lists(st.lists(reward_values, min_size=size, max_size=size), min_size=1, max_size=4))
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
@pytest.mark.parametrize("scale_by_std", [True, False])
@pytest.mark.parametrize("value", [1.0, -1.0, 0.0, 0.1, 1 / 3, 1e6])
def test_equal_rewards_give_exactly_zero(value: float, scale_by_std: bool, epsilon: float) -> None:
    # 16 times 0.1 in float32 does not average to 0.1: without care the std is 1e-9 and not 0.
    advantages = group_advantages(torch.full((2, 16), value), scale_by_std=scale_by_std, epsilon=epsilon)
    assert torch.equal(advantages, torch.zeros(2, 16))


def test_rewards_that_differ_by_rounding_alone_give_exactly_zero_and_a_small_real_difference_does_not() -> None:
    value = torch.tensor(0.3)
    rewards = torch.stack([value, torch.nextafter(value, torch.tensor(1.0)), value, value])[None]
    assert rewards.unique().numel() == 2
    assert torch.equal(group_advantages(rewards, epsilon=0.0), torch.zeros(1, 4))
    # One token of a cache of 4,096: a length penalty of 1 / 4096.
    rewards = torch.tensor([[1.0, 1.0 - 1 / 4096]])
    assert group_advantages(rewards, epsilon=0.0)[0].tolist() == pytest.approx([2**-0.5, -(2**-0.5)])


@settings(max_examples=60, deadline=None)
@given(reward_batches(), st.booleans())
def test_it_equals_a_slow_loop(rewards: Tensor, scale_by_std: bool) -> None:
    advantages = group_advantages(rewards, scale_by_std=scale_by_std, epsilon=1e-6)
    for row, result in zip(rewards.tolist(), advantages.tolist(), strict=True):
        mean = statistics.fmean(row)
        std = statistics.stdev(row)
        scale = std + 1e-6 if scale_by_std else 1.0
        assert result == pytest.approx([(r - mean) / scale for r in row], abs=1e-9)


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, -1.0], [2.0, 2.0, 2.0, 2.0]], dtype=torch.float64)
    expected = [[r - statistics.fmean(row[:i] + row[i + 1 :]) for i, r in enumerate(row)] for row in rewards.tolist()]
    torch.testing.assert_close(leave_one_out_advantages(rewards), torch.tensor(expected, dtype=torch.float64))


def test_whitening_gives_mean_0_and_variance_1_over_the_masked_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    values, mask = 5 + 3 * torch.randn(50, generator=generator, dtype=torch.float64), torch.arange(50) < 40
    white = whiten(values, mask)
    assert white[mask].mean().item() == pytest.approx(0, abs=1e-9)
    assert white[mask].var().item() == pytest.approx(1)
    mean, std = values[mask].mean(), values[mask].std()
    torch.testing.assert_close(white[45], (values[45] - mean) / std)


@pytest.mark.parametrize("values", [[0.1, 0.1, 0.1], [1.0 - 0.7, 0.3, 0.3], [7.0]])
def test_whitening_equal_values_gives_exactly_0(values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=torch.float64)
    assert whiten(tensor, torch.ones(len(values), dtype=torch.bool)).tolist() == [0.0] * len(values)
