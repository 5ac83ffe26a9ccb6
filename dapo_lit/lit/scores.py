"""What the updates of a step start from: the trainer's view of a batch, and the credit of each token."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """Of each response token of a batch, [N], on the CPU, detached."""

    old_logprobs: Tensor
    """Under the policy before the updates, or of the engine; NaN until the first update gives them."""
    ref_logprobs: Tensor | None
    """Under the policy that training began with; None: no reference is kept."""
    values: Tensor | None
    """Of the critic, for the state before the token; None: no critic."""
    of_first_update: Tensor | None = None
    """bool; True: old_logprobs come from the forward pass of the first update. None: all are there."""
    corrections: Tensor | None = None
    """Weight of the token's policy loss for the gap between old_logprobs and its sampler; None: 1 everywhere."""


@dataclass(frozen=True)
class Credit:
    """Of each response token of a batch, [N]."""

    advantages: Tensor
    returns: Tensor | None
    """What the critic is fitted to; None: no critic."""
