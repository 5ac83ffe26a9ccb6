"""The loss of a mini-batch as the module composes it: response tokens in one row, one weight a completion."""

from collections.abc import Callable
from typing import Any

import torch
from batches import MAX_RESPONSE_TOKENS, Batch
from comparison import Result
from plain_losses import losses_of
from torch import Tensor

from dapo_lit.objective.losses import Aggregation, KLEstimator, completion_weights, kl_penalty

PolicyLoss = Callable[..., Any]
"""A loss of dapo_lit.objective, with its own options."""
TokenLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(logprobs, old_logprobs, advantages, completions), each [N] -> [N]."""


def loss(
    batch: Batch,
    token_loss: TokenLoss,
    aggregation: Aggregation,
    *,
    beta: float = 0.0,
    estimator: KLEstimator = "k3",
    max_response_tokens: int = MAX_RESPONSE_TOKENS,
    micro_batch: Tensor | None = None,
) -> Result:
    logprobs = batch.logprobs.clone().requires_grad_()
    mask = batch.response_mask
    completions = torch.arange(len(batch.lengths))[:, None].expand_as(mask)[mask]
    weights = completion_weights(
        batch.loss_tokens,
        batch.group_index,
        micro_batch,
        aggregation=aggregation,
        max_response_tokens=max_response_tokens,
    )
    losses = token_loss(logprobs[mask], batch.old_logprobs[mask], batch.token_advantages[mask], completions)
    if beta:
        losses = losses + beta * kl_penalty(logprobs[mask], batch.ref_logprobs[mask], estimator)
    total = (losses * weights.to(losses.dtype)[completions]).sum()
    total.backward()
    return total, logprobs.grad


def of_tokens(loss_function: PolicyLoss, **settings: Any) -> TokenLoss:
    """A loss that needs each token alone."""
    return lambda logprobs, old, advantages, _: losses_of(loss_function, logprobs, old, advantages, **settings)


def of_completions(loss_function: PolicyLoss, **settings: Any) -> TokenLoss:
    """A loss whose ratio belongs to a whole completion."""

    def token_loss(logprobs: Tensor, old: Tensor, advantages: Tensor, completions: Tensor) -> Tensor:
        return losses_of(loss_function, logprobs, old, advantages, completions=completions, **settings)

    return token_loss


def of_minibatch(loss_function: PolicyLoss, batch: Batch, **settings: Any) -> TokenLoss:
    """A loss that looks at all tokens of the mini-batch that carry loss."""
    mask = batch.loss_mask[batch.response_mask]
    return of_tokens(loss_function, mask=mask, **settings)
