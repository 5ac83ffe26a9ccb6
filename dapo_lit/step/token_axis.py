"""What is known about each response token of a batch when its updates start."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenAxis:
    """The N response tokens of a batch, in its order: every field is [N]; None means that no loss needs the field.

    Everything is detached. `score` and the objective's `credit` fill it on the CPU, the same on every rank. The updates
    read a copy on the policy's device, made once per step so that no micro-batch waits for a transfer.
    """

    loss_mask: Tensor
    """bool; False: the token carries no loss and counts in no denominator. Metrics include it."""
    completion_tokens: Tensor
    """int64; response tokens of the completion that the token belongs to, masked ones included."""
    rollout_logprobs: Tensor
    """float32, nats; under the engine that sampled the token."""
    fresh: Tensor
    """bool; False: the token was sampled by older weights (carried over)."""
    old_logprobs: Tensor
    """float32, nats; under the policy before the updates, or under the engine. NaN where `unscored`, until the first
    update's forward pass fills it in."""
    unscored: Tensor | None = None
    """bool; True: the first update's forward pass gives the old log-prob. None: all are known."""
    ref_logprobs: Tensor | None = None
    """float32, nats; under the frozen reference."""
    values: Tensor | None = None
    """float32, unit of the reward; the critic's, for the state before the token."""
    corrections: Tensor | None = None
    """float32; weight of the token's policy loss for the gap between `old_logprobs` and the policy that sampled it."""
    advantages: Tensor | None = None
    """float32; None until credit is assigned."""
    returns: Tensor | None = None
    """float32, unit of the reward; what the critic is fitted to."""

    def to(self, device: torch.device) -> "TokenAxis":
        """The same on another device."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        return replace(self, **{name: values.to(device) for name, values in known.items()})
