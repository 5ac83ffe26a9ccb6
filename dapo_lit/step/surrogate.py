"""Losses that look at a whole mini-batch, replaced by a sum over tokens that any split into micro-batches adds up to.

A forward pass without gradient gives the log-probs of all tokens on all ranks; the loss of those has a slope at each
token. The sum of slopes times log-probs has the loss's own gradient at the present weights.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dapo_lit.step.forward import PolicyForward
from dapo_lit.step.objective import MinibatchTokens, PolicyLoss
from dapo_lit.step.packing import MicroBatch
from dapo_lit.step.token_axis import TokenAxis


class Linearised(NamedTuple):
    """A loss around the present log-probs: [N] over the batch, on the policy's device; 0 outside the mini-batch."""

    losses: Tensor
    """Of each token."""
    slopes: Tensor
    """Derivative of the weighted sum of the losses by each token's log-prob."""


@torch.no_grad()
def linearised(
    loss: PolicyLoss,
    forward: PolicyForward,
    tokens: TokenAxis,
    completion_of_token: Tensor,
    minibatch: Sequence[int],
    micros: Sequence[tuple[MicroBatch, bool]],
    weights: Tensor,
    seed: int,
) -> Linearised:
    """Linearises the loss of a mini-batch; the result is the same on every rank.

    Args:
        tokens: of the batch, on the CPU, with advantages.
        completion_of_token: [N]
        minibatch: its completions on all ranks.
        micros: this rank's micro-batches of them; False: one that does not count.
        weights: [N] of each token in the loss, on the CPU.
        seed: of the random numbers that the loss draws.
    """
    assert tokens.advantages is not None
    logprobs, entropy = (torch.zeros_like(tokens.old_logprobs, device=forward.device) for _ in range(2))
    for micro, counts in micros:
        micro = micro.to(forward.device)
        scored = forward.logprobs(micro)
        if counts:
            logprobs[micro.tokens], entropy[micro.tokens] = scored
    logprobs, entropy = (forward.ranks.sum(x.cpu()) for x in (logprobs, entropy))
    places = torch.isin(completion_of_token, torch.tensor(minibatch)).nonzero().flatten()
    with torch.enable_grad():
        variable = logprobs[places].requires_grad_()
        losses = loss.over_minibatch(
            MinibatchTokens(
                logprobs=variable,
                old_logprobs=tokens.old_logprobs[places],
                advantages=tokens.advantages[places],
                completions=completion_of_token[places],
                mask=tokens.loss_mask[places],
                entropy=entropy[places],
                generator=torch.Generator().manual_seed(seed),
            )
        )
        if tokens.corrections is not None:
            losses = losses * tokens.corrections[places]
        (slopes,) = torch.autograd.grad((losses * weights[places]).sum(), variable)
    whole = Linearised(torch.zeros_like(logprobs), torch.zeros_like(logprobs))
    whole.losses[places], whole.slopes[places] = losses.detach().float(), slopes
    return Linearised(*(x.to(forward.device) for x in whole))
