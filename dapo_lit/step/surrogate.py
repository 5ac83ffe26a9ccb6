"""Losses that look at a whole mini-batch, as a sum over tokens that any split into micro-batches adds up.

A forward pass without gradient gives the log-probs of all tokens on all ranks, the loss of them its slope at each.
Slopes times log-probs have the loss's own gradient at the weights of the moment, and are a sum over tokens.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from dapo_lit.recipe.policy_loss import Tokens
from dapo_lit.step.packing import MicroBatch, TokenBatch
from dapo_lit.step.token_axis import Credit, Scores

if TYPE_CHECKING:
    from dapo_lit.lit.module import DAPOModule


class Linearised(NamedTuple):
    """A loss of a mini-batch at its log-probs, [N] over the batch's tokens, on the policy's device; else 0."""

    losses: Tensor
    """Of each token."""
    slopes: Tensor
    """Derivative of the weighted sum of the losses by each token's log-prob."""


@torch.no_grad()
def linearised(
    module: "DAPOModule",
    batch: TokenBatch,
    scores: Scores,
    credit: Credit,
    minibatch: Tensor,
    micros: Sequence[tuple[MicroBatch, bool]],
    weights: Tensor,
    seed: int,
) -> Linearised:
    """The module's loss of a mini-batch, the same on every rank.

    Args:
        minibatch: its completions on all ranks.
        micros: this rank's micro-batches, False: one that only keeps step.
        weights: [B] of a completion's tokens.
        seed: of what the loss draws.
    """
    logprobs, entropy = (torch.zeros_like(scores.old_logprobs, device=module.device) for _ in range(2))
    for micro, counts in micros:
        micro = micro.to(module.device)
        scored = module.logprobs(micro)
        if counts:
            logprobs[micro.tokens], entropy[micro.tokens] = scored
    logprobs, entropy = (module.ranks.sum(x.cpu()) for x in (logprobs, entropy))
    places = torch.isin(batch.completion_of_token, minibatch).nonzero().flatten()
    completions = batch.completion_of_token[places]
    with torch.enable_grad():
        variable = logprobs[places].requires_grad_()
        tokens = Tokens(
            logprobs=variable,
            old_logprobs=scores.old_logprobs[places],
            advantages=credit.advantages[places],
            completions=completions,
            mask=batch.carries_loss[completions],
            entropy=entropy[places],
            generator=torch.Generator().manual_seed(seed),
        )
        losses = module.objective.loss.of_minibatch(tokens)
        if scores.corrections is not None:
            losses = losses * scores.corrections[places]
        (slopes,) = torch.autograd.grad((losses * weights[completions]).sum(), variable)
    whole = Linearised(torch.zeros_like(logprobs), torch.zeros_like(logprobs))
    whole.losses[places], whole.slopes[places] = losses.detach().float(), slopes
    return Linearised(*(x.to(module.device) for x in whole))
