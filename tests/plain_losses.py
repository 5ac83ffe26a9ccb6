"""Policy losses of plain tensors, for tests that look at the losses and not at the statistics."""

from typing import Any

import torch
from torch import Tensor

from dapo_lit.objective.tokens import Bounds, Tokens

FIELDS = ("entropy", "completion_tokens", "completions", "mask", "generator")


def losses_of(
    function: Any,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_dual: float | None = None,
    **others: Any,
) -> Tensor:
    """The loss of each token. `others`: fields of Tokens, and options of the loss."""
    fields = {name: others.pop(name) for name in FIELDS if name in others}
    logprobs, old_logprobs, advantages = torch.broadcast_tensors(logprobs, old_logprobs, advantages)
    tokens = Tokens(logprobs, old_logprobs, advantages, **fields)
    losses: Tensor = function(tokens, Bounds(clip_low, clip_high, clip_dual), **others)[0]
    return losses
