"""A loss of each token by its log-prob, through the head in chunks: what step/loss.py does, without an objective."""

from collections.abc import Callable

import torch
from torch import Tensor

from dapo_lit.policy.head import Head, HeadPass


def head_loss(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    loss_of_tokens: Callable[[Tensor, slice], Tensor],
    *,
    temperature: float = 1.0,
    compiles: bool = False,
) -> tuple[Tensor, Tensor]:
    """The sum of `loss_of_tokens` (log-probs [c], their places -> [c]) over n tokens, with gradient; log-probs [n]."""
    way = HeadPass(hidden, head, targets, temperature=temperature, compiles=compiles)
    loss, logprobs = hidden.new_zeros((), dtype=torch.float64), []
    for chunk in way.chunks():
        part = loss_of_tokens(chunk.logprobs, chunk.tokens).sum()
        chunk.backward(part)
        loss += part.detach()
        logprobs.append(chunk.logprobs.detach())
    return way.with_gradient(loss), torch.cat(logprobs)
