"""Single tokens inside a response without loss, worked by hand.

One group of two completions of 2 and 3 tokens, with advantages 1 and -1. On policy the loss of a token is minus its
advantage, and its slope is that times its weight.
"""

from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from dapo_lit.objective.tokens import NOTHING
from dapo_lit.step.batch import TokenBatch
from dapo_lit.step.loss import TokenData, weighted_loss
from dapo_lit.step.optimizer import Counters
from dapo_lit.step.updates import StepUpdates
from dapo_lit.switches.algorithm import objective

LENGTHS = torch.tensor([2, 3])
ALL = [True, True, True, True, True]


def batch_with(mask: list[bool]) -> TokenBatch:
    return TokenBatch(
        sequences=[torch.tensor([9, 1, 2]), torch.tensor([9, 3, 4, 5])],
        prompt_lengths=torch.tensor([1, 1]),
        response_lengths=LENGTHS,
        group_index=torch.tensor([0, 0]),
        rewards=torch.tensor([1.0, -1.0], dtype=torch.float64),
        loss_mask=torch.tensor(mask),
        rollout_logprobs=torch.full((5,), -1.0),
        fresh=torch.ones(5, dtype=torch.bool),
    )


def tokens_of(batch: TokenBatch) -> TokenData:
    return TokenData(
        completions=batch.completion_of_token,
        loss_mask=batch.loss_mask,
        completion_tokens=LENGTHS[batch.completion_of_token],
        rollout_logprobs=batch.rollout_logprobs,
        fresh=batch.fresh,
        old_logprobs=batch.rollout_logprobs,
        advantages=torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0]),
    )


@pytest.mark.parametrize(
    ("switches", "mask", "loss", "slopes"),
    [
        # Every token weighs 1 / 5: (-1 - 1 + 1 + 1 + 1) / 5.
        ([], ALL, 0.2, [-0.2, -0.2, 0.2, 0.2, 0.2]),
        # Four tokens are left: (-1 - 1 + 1 + 1) / 4.
        ([], [True, True, True, False, True], 0.0, [-0.25, -0.25, 0.25, 0, 0.25]),
        # (-1 + 1 + 1 + 1) / 4.
        ([], [False, True, True, True, True], 0.5, [0, -0.25, 0.25, 0.25, 0.25]),
        # Every completion weighs 1 / 2, the first with one token, the second with three.
        (["token_level_loss=false"], [False, True, True, True, True], 0.0, [0, -1 / 2, 1 / 6, 1 / 6, 1 / 6]),
        # A completion without any loss token counts in no denominator: (1 + 1) / 2.
        (["token_level_loss=false"], [False, False, True, False, True], 1.0, [0, 0, 1 / 2, 0, 1 / 2]),
    ],
)
def test_a_masked_token_leaves_loss_gradient_and_denominator(compose, switches, mask, loss, slopes):
    goal = objective(compose(*(f"algorithm.techniques.{s}" for s in switches)).algorithm, max_response_tokens=8)
    batch = batch_with(mask)
    known = tokens_of(batch).weighted(goal.weights(batch.loss_tokens, batch.group_index).float())
    logprobs = torch.full((5,), -1.0, requires_grad=True)
    losses, statistics = weighted_loss(goal, known, logprobs, torch.ones(5))
    assert losses.sum().item() == pytest.approx(loss, abs=1e-7)
    assert torch.autograd.grad(losses.sum(), logprobs)[0].tolist() == pytest.approx(slopes, abs=1e-7)
    assert statistics.sums["response_tokens"] == 5  # metrics go over all response tokens


def test_a_mini_batch_without_loss_tokens_is_no_update(compose, monkeypatch):
    monkeypatch.setattr(StepUpdates, "accumulate_gradient", lambda *_: torch.tensor(0.0))
    config, batch, steps = compose(), batch_with([False] * 5), Mock(counters=Counters())
    goal, forward = objective(config.algorithm, max_response_tokens=8), Mock(device=torch.device("cpu"))
    StepUpdates(config, goal, forward, steps, Tensor.backward, 1, batch, tokens_of(batch), NOTHING).run()
    assert not steps.take.called
    assert steps.counters.tokens_trained == 0


def test_whitening_takes_mean_and_variance_over_the_loss_tokens(compose):
    options = ("advantage.estimator=returns", "advantage.whiten=true", "techniques.dynamic_sampling=false")
    algorithm = compose(*(f"algorithm.{option}" for option in options)).algorithm
    batch = replace(batch_with(ALL), loss_mask=torch.tensor([True, True, True, True, False]))
    tokens = objective(algorithm, 8).credit(batch, replace(tokens_of(batch), advantages=None))
    # Returns are 1, 1 and -1, -1, -1; the first four have mean 0 and variance 4 / 3.
    assert tokens.advantages.tolist() == pytest.approx([0.75**0.5] * 2 + [-(0.75**0.5)] * 3)
    everything = objective(algorithm, 8).credit(batch_with(ALL), tokens_of(batch_with(ALL)))
    # All five: mean -0.2, variance 1.2.
    assert everything.advantages.tolist() == pytest.approx([1.2 / 1.2**0.5] * 2 + [-0.8 / 1.2**0.5] * 3)
