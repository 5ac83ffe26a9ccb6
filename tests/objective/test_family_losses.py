"""REINFORCE, CISPO, GSPO and GMPO: by hand, against loops of Python floats, and by their gradients."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from flat import completions_of, random_batch, split, tensor
from plain_losses import losses_of
from torch import Tensor

from dapo_lit.objective.losses import (
    cispo_loss,
    clipped_policy_loss,
    gmpo_loss,
    gspo_loss,
    reinforce_loss,
)


def gradient(loss: Tensor, logprobs: Tensor, weights: Tensor | float = 1.0) -> Tensor:
    return torch.autograd.grad((loss * weights).sum(), logprobs)[0]


def test_reinforce_by_hand() -> None:
    logprobs = tensor(-2, -0.5).requires_grad_()
    loss = losses_of(reinforce_loss, logprobs, tensor(-9, -9), tensor(3, -1))
    assert loss.tolist() == [6, -0.5]
    assert gradient(loss, logprobs).tolist() == [-3, 1]


def test_every_loss_has_the_gradient_of_reinforce_on_policy() -> None:
    lengths, logprobs, _, advantages = random_batch(0)
    old, completions = logprobs.detach(), completions_of(lengths)
    weights = 1 / torch.tensor(lengths, dtype=torch.float64)[completions]
    expected = gradient(losses_of(reinforce_loss, logprobs, old, advantages), logprobs, weights)
    for loss in (
        losses_of(clipped_policy_loss, logprobs, old, advantages, clip_low=0.2, clip_high=0.28),
        losses_of(cispo_loss, logprobs, old, advantages, clip_low=1, clip_high=4),
        losses_of(gspo_loss, logprobs, old, advantages, completions=completions, clip_low=3e-4, clip_high=4e-4),
        losses_of(gmpo_loss, logprobs, old, advantages, completions=completions, clip_low=0.4, clip_high=0.4),
    ):
        torch.testing.assert_close(gradient(loss, logprobs, weights), expected)


def test_cispo_bounds_the_weight_and_drops_no_token() -> None:
    logprobs = tensor(math.log(0.5), math.log(0.5), math.log(0.01)).requires_grad_()
    old = tensor(math.log(0.05), math.log(0.4), math.log(0.5))  # ratios 10, 1.25, 0.02
    loss = losses_of(cispo_loss, logprobs, old, tensor(1, -2, 1), clip_low=1.0, clip_high=1.0)
    assert gradient(loss, logprobs).tolist() == pytest.approx([-2, 2.5, -0.02])
    floored = losses_of(cispo_loss, logprobs, old, tensor(1, -2, 1), clip_low=0.2, clip_high=0.28)
    assert gradient(floored, logprobs).tolist() == pytest.approx([-1.28, 2.5, -0.8])
    assert floored[0].item() == pytest.approx(-1.28 * math.log(0.5))


def test_gspo_clips_whole_completions_by_hand() -> None:
    # Two tokens of ratios 1.44 and 1: s = sqrt(1.44) = 1.2. One of ratio 0.9: s = 0.9.
    logprobs, completions = tensor(math.log(1.44), 0, math.log(0.9)).requires_grad_(), torch.tensor([0, 0, 1])
    loss = partial(losses_of, gspo_loss, logprobs, tensor(0, 0, 0), completions=completions)
    inside = loss(tensor(2, 2, -1), clip_low=0.2, clip_high=0.25)
    assert inside.tolist() == pytest.approx([-2.4, -2.4, 0.9])
    # A completion of 2 tokens, each weighing 1/2: d/dlogp_t of -s A = -s A / 2.
    assert gradient(inside, logprobs, tensor(0.5, 0.5, 1)).tolist() == pytest.approx([-1.2, -1.2, 0.9])
    outside = loss(tensor(2, 2, -1), clip_low=0.05, clip_high=0.1)
    assert outside.tolist() == pytest.approx([-2.2, -2.2, 0.95])
    assert gradient(outside, logprobs).tolist() == [0, 0, 0]


def test_gmpo_is_the_geometric_mean_of_ratios_clipped_where_the_advantage_pushes() -> None:
    # Log-ratios 1, -1, 0.3 with A = 2, clipped above at 0.4: mean -0.1.
    logprobs, completions = tensor(1, -1, 0.3).requires_grad_(), torch.zeros(3, dtype=torch.long)
    up = losses_of(
        gmpo_loss, logprobs, tensor(0, 0, 0), tensor(2, 2, 2), completions=completions, clip_low=0.4, clip_high=0.4
    )
    assert up.tolist() == pytest.approx([-2 * math.exp(-0.1)] * 3)
    assert gradient(up, logprobs).tolist() == pytest.approx([0, -2 * math.exp(-0.1), -2 * math.exp(-0.1)])
    # A < 0 clips below: 1, -0.4, 0.3, mean 0.3.
    down = losses_of(
        gmpo_loss, logprobs, tensor(0, 0, 0), -tensor(1, 1, 1), completions=completions, clip_low=0.4, clip_high=0.4
    )
    assert down.tolist() == pytest.approx([math.exp(0.3)] * 3)


SlowLoss = Callable[[list[float], list[float], float], float]


def slow_gspo(logprobs: list[float], old: list[float], advantage: float) -> float:
    s = math.exp(math.fsum(n - o for n, o in zip(logprobs, old, strict=True)) / len(old))
    return -min(s * advantage, min(max(s, 1 - 0.1), 1 + 0.15) * advantage)


def slow_gmpo(logprobs: list[float], old: list[float], advantage: float) -> float:
    product = 1.0
    for n, o in zip(logprobs, old, strict=True):
        ratio = math.exp(n - o)
        clipped = min(max(ratio, math.exp(-0.3)), math.exp(0.2))
        product *= min(ratio * advantage, clipped * advantage) / advantage
    return -advantage * product ** (1 / len(old))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("fast", "slow"),
    [
        (partial(losses_of, gspo_loss, clip_low=0.1, clip_high=0.15), slow_gspo),
        (partial(losses_of, gmpo_loss, clip_low=0.3, clip_high=0.2), slow_gmpo),
    ],
)
def test_a_sequence_loss_equals_a_loop_over_completions(fast: Callable[..., Tensor], slow: SlowLoss, seed: int) -> None:
    lengths, logprobs, old, advantages = random_batch(seed)
    losses = split(fast(logprobs, old, advantages, completions=completions_of(lengths)), lengths)
    parts = zip(losses, *(split(x, lengths) for x in (logprobs, old, advantages)), strict=True)
    for loss, new, before, advantage in parts:
        assert loss == pytest.approx([slow(new, before, advantage[0])] * len(loss))


@pytest.mark.parametrize("loss", [gspo_loss, gmpo_loss])
def test_extreme_ratios_stay_finite(loss: Callable[..., Tensor]) -> None:
    logprobs = torch.tensor([0.0, -500.0, 0.0, -300.0], requires_grad=True)
    old, completions = torch.tensor([-500.0, 0.0, -400.0, 0.0]), torch.tensor([0, 1, 2, 3])
    value = losses_of(
        loss, logprobs, old, torch.tensor([1.0, 1, -1, -1]), completions=completions, clip_low=0.2, clip_high=0.2
    )
    assert value.isfinite().all()
    assert gradient(value, logprobs).isfinite().all()
