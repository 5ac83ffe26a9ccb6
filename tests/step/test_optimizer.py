"""Optimiser steps one by one: the learning rate, and updates that are skipped."""

from types import SimpleNamespace

import pytest
import torch

from dapo_lit.config import Optimizer
from dapo_lit.ranks import Ranks
from dapo_lit.step.optimizer import Counters, OptimizerSteps, begin_states, learning_rate

SETTINGS = {"lr": 1.0, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "grad_clip": None}


def schedule(**values: object) -> Optimizer:
    return Optimizer.model_validate({**SETTINGS, "warmup_steps": 4, "schedule": "linear", **values})


def test_the_learning_rate_rises_over_the_warm_up_then_falls_to_zero():
    rates = [learning_rate(step, schedule(), total_steps=8) for step in range(1, 9)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert learning_rate(8, schedule(schedule="constant"), total_steps=8) == 1.0
    assert learning_rate(1, schedule(warmup_steps=0, schedule="constant"), total_steps=8) == 1.0


def test_the_policy_warms_up_behind_the_steps_of_the_critic_alone():
    rates = []
    for step in range(1, 8):
        config = SimpleNamespace(
            algorithm=SimpleNamespace(optimizer=schedule(warmup_steps=2), critic=SimpleNamespace(warmup_steps=3)),
            budget=SimpleNamespace(steps=7),
        )
        of_policy, of_critic = (torch.zeros(1, requires_grad=True) for _ in range(2))
        groups = [{"params": [of_policy], "lr_factor": 1.0}, {"params": [of_critic], "lr_factor": 2.0}]
        optimizer = torch.optim.SGD(groups, lr=1.0)
        OptimizerSteps(config, optimizer, SimpleNamespace(critic=None, ranks=Ranks()), Counters(), step, step <= 3)  # type: ignore[arg-type]
        rates.append([group["lr"] for group in optimizer.param_groups])
    # Policy: a warm-up of two steps from the fourth on, then linear to 0 behind the seventh. Critic: from the first.
    assert [policy for policy, _ in rates[3:]] == pytest.approx([0.5, 1.0, 1.0, 0.5])
    assert [critic for _, critic in rates] == pytest.approx([1.0, 2.0, 2.0, 1.6, 1.2, 0.8, 0.4])


def plain_steps(weight: torch.Tensor, **settings: object) -> OptimizerSteps:
    """Gradient descent at a rate of 0.5."""
    config = SimpleNamespace(
        algorithm=SimpleNamespace(optimizer=schedule(warmup_steps=0, schedule="constant", **settings), critic=None),
        budget=SimpleNamespace(steps=1),
        policy=SimpleNamespace(path="somewhere"),
        trainer=SimpleNamespace(),
    )
    optimizer = torch.optim.SGD([{"params": [weight], "lr_factor": 0.5}], lr=1.0)
    return OptimizerSteps(config, optimizer, SimpleNamespace(critic=None, ranks=Ranks()), Counters(), 1, False)  # type: ignore[arg-type]


def test_a_gradient_above_the_bound_is_clipped_to_it_and_the_norm_before_is_recorded():
    weight = torch.zeros(2, requires_grad=True)
    steps = plain_steps(weight, grad_clip=1.0)
    (weight * torch.tensor([3.0, 4.0])).sum().backward()
    assert steps.take(torch.tensor(1.0))
    assert weight.tolist() == pytest.approx([-0.3, -0.4], rel=1e-5)
    (weight * torch.tensor([0.3, 0.4])).sum().backward()
    assert steps.take(torch.tensor(1.0))
    assert weight.tolist() == pytest.approx([-0.45, -0.6], rel=1e-5)
    assert steps.norms == pytest.approx([5.0, 0.5])


def test_the_noise_of_the_gradient_is_its_variance_over_the_square_of_its_mean():
    weight = torch.zeros(2, requires_grad=True)
    steps = plain_steps(weight, grad_clip=1.0)
    steps.config.policy.path = None  # type: ignore[misc]
    for gradient in ([3.0, 4.0], [0.0, 1.0], [torch.nan, 1.0]):
        (weight * torch.tensor(gradient)).sum().backward()
        steps.take(torch.tensor(1.0))
    # mean (1.5, 2.5), squared 8.5; deviations of +-(1.5, 1.5): 9 / (2 - 1)
    assert steps.metrics()["optim/grad_noise"] == pytest.approx(9 / 8.5)


def test_a_skipped_update_leaves_no_gradient_behind_and_one_that_is_taken_ends_the_row_of_bad_ones():
    weight = torch.zeros(2, requires_grad=True)
    steps = plain_steps(weight)
    seen = []
    for gradient, loss in [(torch.nan, 1.0), (torch.inf, 1.0), (2.0, 1.0), (4.0, torch.nan), (6.0, 1.0)]:
        (weight * gradient).sum().backward()
        taken = steps.take(torch.tensor(loss))
        seen.append((taken, steps.bad_updates_in_a_row, weight.tolist()))
    assert seen == [
        (False, 1, [0, 0]), (False, 2, [0, 0]), (True, 0, [-1, -1]), (False, 1, [-1, -1]), (True, 0, [-4, -4]),
    ]  # fmt: skip
    assert steps.metrics()["optim/bad_updates"] == 3
    assert steps.metrics()["optim/grad_norm"] == pytest.approx((8**0.5 + 72**0.5) / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_an_optimizer_whose_states_are_begun_makes_the_updates_of_one_that_begins_them_itself(dtype, amsgrad):
    """The third parameter has a gradient from the third update on, as a policy has after a warm-up."""
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(size, generator=generator).to(dtype) for size in ((5, 3), (4,), (2, 2))]
    gradients = [[torch.randn(start.shape, generator=generator).to(dtype) for start in starts] for _ in range(4)]
    ended = []
    for begins in (True, False):
        weights = [start.clone().requires_grad_() for start in starts]
        optimizer = torch.optim.AdamW(weights, lr=0.1, weight_decay=0.1, amsgrad=amsgrad)
        if begins:
            begin_states(optimizer)
        for update, of_update in enumerate(gradients):
            for weight, gradient in zip(weights[: 2 if update < 2 else 3], of_update, strict=False):
                weight.grad = gradient.clone()
            optimizer.step()
            if update < 2:
                assert torch.equal(weights[2], starts[2])
        ended.append([weights, *(optimizer.state[weight].values() for weight in weights)])
    assert len(ended[0]) == len(ended[1]) == 4
    for begun, own in zip(*ended, strict=True):
        assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(begun, own, strict=True))
