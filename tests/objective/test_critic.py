"""The value loss and what is measured of a value function."""

import pytest
import torch
from flat import tensor
from torch import Tensor

from dapo_lit.objective.losses import clipped_value_loss, finish_critic
from dapo_lit.objective.tokens import NOTHING, merge


@pytest.mark.parametrize(
    ("value", "loss", "gradient"),
    [
        (0.1, 0.405, -0.9),  # within the range: (0.1 - 1)^2 / 2
        (0.5, 0.32, 0.0),  # moved past 0.2 towards the return: no reason to go further
        (-0.5, 1.125, -1.5),  # moved past -0.2 away from it: it may come back
        (2.5, 1.125, 1.5),  # overshot to where it is worse than the bound
    ],
)
def test_each_region_of_the_value_clip_by_hand(value: float, loss: float, gradient: float) -> None:
    values = tensor(value).requires_grad_()
    result, _ = clipped_value_loss(values, tensor(0.0), tensor(1.0), clip=0.2)
    result.sum().backward()
    assert values.grad is not None
    assert (result.item(), values.grad.item()) == pytest.approx((loss, gradient))


def test_without_a_clip_it_is_half_the_squared_error() -> None:
    loss, _ = clipped_value_loss(tensor(0.5, 3), tensor(9, 9), tensor(1, 1), clip=None)
    torch.testing.assert_close(loss, tensor(0.125, 2))


def metrics(values: Tensor, old: Tensor, returns: Tensor, clip: float | None = None) -> dict[str, float | None]:
    return finish_critic(clipped_value_loss(values, old, returns, clip=clip)[1])


def test_explained_variance_is_one_for_the_returns_zero_for_a_constant_and_null_without_variance() -> None:
    returns = tensor(1, -1, 2, 0)
    assert metrics(returns, returns, returns)["critic/explained_variance"] == pytest.approx(1)
    assert metrics(returns, tensor(5, 5, 5, 5), returns)["critic/explained_variance"] == pytest.approx(0)
    assert metrics(returns, -returns, returns)["critic/explained_variance"] == pytest.approx(-3)
    assert metrics(returns, returns, tensor(0.1, 0.1, 0.1, 0.1))["critic/explained_variance"] is None


def test_the_parts_of_two_halves_add_up_to_the_whole() -> None:
    generator = torch.Generator().manual_seed(3)
    values, old, returns = torch.randn(3, 10, generator=generator, dtype=torch.float64)
    expected = metrics(values, old, returns, clip=0.3)
    halves = [clipped_value_loss(values[s], old[s], returns[s], clip=0.3)[1] for s in (slice(0, 5), slice(5, 10))]
    assert finish_critic(merge(*halves)) == pytest.approx(expected)
    assert expected["critic/value_mean"] == pytest.approx(old.mean().item())
    assert expected["critic/clip_frac"] not in (0, 1)
    assert finish_critic(NOTHING) == dict.fromkeys(expected)
