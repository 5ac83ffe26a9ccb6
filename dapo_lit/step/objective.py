"""What a step minimises, as plain values and functions. recipe/switches.py makes it from the config.

Nothing here knows a switch any more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dapo_lit.objective.entropy import top_entropy_mask
from dapo_lit.objective.losses import KLEstimator, kl_penalty
from dapo_lit.step.packing import TokenBatch
from dapo_lit.step.token_axis import TokenAxis


@dataclass(frozen=True)
class MinibatchTokens:
    """The response tokens of a whole mini-batch, n of them, for losses that look at more than one token at a time."""

    logprobs: Tensor
    """[n] nats, with gradient."""
    old_logprobs: Tensor
    """[n] nats."""
    advantages: Tensor
    """[n]"""
    completions: Tensor
    """[n] integers, equal for the tokens of one completion."""
    mask: Tensor
    """[n] bool; False: the token carries no loss."""
    entropy: Tensor
    """[n] nats, without gradient."""
    generator: torch.Generator
    """Seeded by run, step and mini-batch."""


@dataclass(frozen=True)
class PolicyLoss:
    """The policy loss of each token, with its bounds and options filled in."""

    function: Callable[..., Tensor]
    """(logprobs, old_logprobs, advantages), each [n], and `needs` by keyword -> loss of each token [n]."""
    needs: tuple[str, ...] = ()
    """Further fields of MinibatchTokens that the function takes."""
    top_entropy_frac: float = 1.0
    """Below 1: only this share of the mini-batch's tokens, those of highest entropy, carries loss."""
    options: frozenset[str] = frozenset()
    """Names of the bounds and options that the loss takes."""

    @property
    def needs_whole_minibatch(self) -> bool:
        """Whether the loss of a token depends on other tokens."""
        return bool(self.needs) or self.top_entropy_frac < 1

    def per_token(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
        """[n] the losses of any tokens; only for a loss that does not need the whole mini-batch."""
        return self.function(logprobs, old_logprobs, advantages)

    def over_minibatch(self, tokens: MinibatchTokens) -> Tensor:
        """[n] the losses of all tokens of a mini-batch."""
        needed = {name: getattr(tokens, name) for name in self.needs}
        losses = self.function(tokens.logprobs, tokens.old_logprobs, tokens.advantages, **needed)
        if self.top_entropy_frac == 1:
            return losses
        kept = top_entropy_mask(tokens.entropy, tokens.mask, frac=self.top_entropy_frac)
        return torch.where(kept, losses, 0.0)


@dataclass(frozen=True)
class Objective:
    """The loss of a mini-batch: policy loss, KL and entropy terms of each token, and the weights that sum them up."""

    clip_low: float
    clip_high: float
    clip_dual: float | None
    loss: PolicyLoss
    entropy_bonus: float
    """A token's loss is lowered by this times the policy's entropy (nats) at the token."""
    kl_beta: float
    """Weight of the divergence from the reference in the loss of a token; 0: not in the loss."""
    kl_estimator: KLEstimator | Literal["full"]
    recomputes_old_logprobs: bool
    """pi_old comes from a forward pass of the trainer; False: from the engine that sampled."""
    credit: Callable[[TokenBatch, TokenAxis], TokenAxis]
    """The tokens with their advantages and, for a critic, returns."""
    weights: Callable[..., Tensor]
    """(loss_tokens, group_index, micro_batch), each [B] of a whole mini-batch -> [B] weight of a token with loss."""
    correction: Callable[[Tensor, Tensor, Tensor], Tensor] | None
    """(old_logprobs, rollout_logprobs, completions), each [N] -> [N] weights of the policy loss; None: all 1."""

    def regularisation(
        self,
        logprobs: Tensor,
        ref_logprobs: Tensor | None,
        entropy: Tensor | None = None,
        exact_kl: Tensor | None = None,
    ) -> Tensor:
        """[n] what each token's loss has besides the policy loss: the divergence and the entropy bonus.

        entropy: needed for a bonus.
        """
        terms = torch.zeros_like(logprobs)
        if self.kl_beta and self.kl_estimator == "full":
            assert exact_kl is not None
            terms = terms + self.kl_beta * exact_kl
        elif self.kl_beta and self.kl_estimator != "full" and ref_logprobs is not None:
            terms = terms + self.kl_beta * kl_penalty(logprobs, ref_logprobs, self.kl_estimator)
        if self.entropy_bonus and entropy is not None:
            terms = terms - self.entropy_bonus * entropy
        return terms
