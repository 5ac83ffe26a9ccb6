"""What the updates of a step start from: the trainer's view of a batch, and the credit of each token."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dapo_lit.step.packing import TokenBatch


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


@dataclass(frozen=True)
class TokenValues:
    """What the micro-batches of a step read, on the policy's device: moved once, so that no micro-batch waits for it.

    Of each response token, [N], but for response_lengths, [B]. `old_logprobs` fills up where a step's first update
    gives them.
    """

    old_logprobs: Tensor
    rollout_logprobs: Tensor
    fresh: Tensor
    advantages: Tensor
    response_lengths: Tensor
    ref_logprobs: Tensor | None
    corrections: Tensor | None
    values: Tensor | None
    returns: Tensor | None

    @classmethod
    def of(cls, batch: TokenBatch, scores: Scores, credit: Credit, device: torch.device) -> "TokenValues":
        def placed(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.to(device)

        return cls(
            old_logprobs=scores.old_logprobs.to(device),
            rollout_logprobs=batch.rollout_logprobs.to(device),
            fresh=batch.fresh.to(device),
            advantages=credit.advantages.to(device),
            response_lengths=batch.response_lengths.to(device),
            ref_logprobs=placed(scores.ref_logprobs),
            corrections=placed(scores.corrections),
            values=placed(scores.values),
            returns=placed(credit.returns),
        )
