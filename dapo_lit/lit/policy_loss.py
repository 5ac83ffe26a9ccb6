"""The policy loss that the config names, ready to be called with the tokens of a mini-batch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from dapo_lit.config import Algorithm
from dapo_lit.objective.losses import clipped_policy_loss


@dataclass(frozen=True)
class PolicyLoss:
    """A loss of tokens."""

    of_tokens: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(logprobs, old_logprobs, advantages), each [n] -> loss of each token [n]."""


def policy_loss(algorithm: Algorithm, *, clip_high: float) -> PolicyLoss:
    """`clip_high`: the upper bound in effect."""
    clip = algorithm.clip
    return PolicyLoss(partial(clipped_policy_loss, clip_low=clip.low, clip_high=clip_high, clip_dual=clip.dual))
