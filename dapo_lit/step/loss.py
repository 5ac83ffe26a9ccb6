"""The loss of a mini-batch, DAPO Eq. 8 read downwards: `weighted_loss` is each token's part of it.

    sum over tokens of  weight * (policy loss * correction + beta * KL - bonus * entropy)

The policy loss is one function of objective/, and the weights hold the whole denominator.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from dapo_lit.objective.diagnostics import reference_statistics
from dapo_lit.objective.losses import KLEstimator, kl_penalty
from dapo_lit.objective.tokens import Bounds, PolicyLoss, Statistics, Tokens, merge, token_statistics
from dapo_lit.step.batch import TokenBatch


@dataclass(frozen=True)
class TokenAxis:
    """The response tokens of a batch, or some of them: every field is [n]; None means that no loss needs the field.

    Everything is detached. Scoring and the objective's `credit` fill it on the CPU, the same on every rank. The updates
    read a copy on the policy's device, made once per step so that no micro-batch waits for a transfer.
    """

    completions: Tensor
    """int64; the completion that the token belongs to."""
    completion_tokens: Tensor
    """int64; response tokens of that completion, masked ones included."""
    loss_mask: Tensor
    """bool; False: the token carries no loss and counts in no denominator. Metrics include it."""
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
    weights: Tensor | None = None
    """float32; of the token in the loss of the mini-batch at hand, 0 where masked; of a micro-batch only."""
    losses: Tensor | None = None
    """float32; of a policy loss that looks at the whole mini-batch. None: one that is a sum over tokens."""
    slopes: Tensor | None = None
    """float32; derivative of the weighted sum of those losses by the token's log-prob."""

    def __getitem__(self, chosen: Tensor | slice) -> "TokenAxis":
        return self._each(lambda values: values[chosen])

    def weighted(self, of_completion: Tensor) -> "TokenAxis":
        """With the weight that each token of a completion has, [B]; 0 where masked."""
        return replace(self, weights=of_completion[self.completions] * self.loss_mask)

    def to(self, device: torch.device) -> "TokenAxis":
        return self._each(lambda values: values.to(device))

    def _each(self, function: Callable[[Tensor], Tensor]) -> "TokenAxis":
        known = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        return replace(self, **{name: function(values) for name, values in known.items()})


@dataclass(frozen=True)
class Objective:
    """The objective of a step, as plain values and functions; switches/algorithm.py makes it from the config."""

    policy_loss: PolicyLoss
    """Options filled in."""
    bounds: Bounds
    """In effect, for the loss and for the metrics of clipping."""
    takes: frozenset[str]
    """Names of the bounds and options that the policy loss takes."""
    whole_minibatch: bool
    """The policy loss of a token depends on other tokens of its mini-batch."""
    entropy_bonus: float
    """A token's loss is lowered by this times the policy's entropy (nats) at the token."""
    kl_beta: float
    """Weight of the divergence from the reference in the loss of a token; 0: not in the loss."""
    kl_estimator: KLEstimator
    recomputes_old_logprobs: bool
    """pi_old comes from a forward pass of the trainer; False: from the engine that sampled."""
    credit: Callable[[TokenBatch, TokenAxis], TokenAxis]
    """The tokens with their advantages and, for a critic, returns."""
    weights: Callable[..., Tensor]
    """(loss_tokens, group_index, micro_batch), each [B] of a whole mini-batch -> [B] weight of a token with loss."""
    correction: Callable[[Tensor, Tensor, Tensor], Tensor] | None
    """(old_logprobs, rollout_logprobs, completions), each [N] -> [N] weights of the policy loss; None: all 1."""


def weighted_loss(
    objective: Objective, known: TokenAxis, logprobs: Tensor, entropy: Tensor
) -> tuple[Tensor, Statistics]:
    """[n] each token's part of the loss of its mini-batch, and what is measured of these tokens.

    known: of these tokens, with weights.
    logprobs: [n] nats under the policy, with gradient.
    entropy: [n] nats, with gradient if there is a bonus.
    """
    assert known.advantages is not None
    assert known.weights is not None
    # Not scored before the updates: this is the forward pass before the first one, so its ratio is 1.
    old = torch.where(known.old_logprobs.isnan(), logprobs.detach(), known.old_logprobs)
    tokens = Tokens(logprobs, old, known.advantages, entropy.detach(), known.completion_tokens)
    if known.slopes is None:
        losses, statistics = objective.policy_loss(tokens, objective.bounds)
        if known.corrections is not None:
            losses = losses * known.corrections
    else:
        assert known.losses is not None
        losses, statistics = known.losses, token_statistics(tokens, objective.bounds)
    if known.ref_logprobs is not None:
        statistics = merge(statistics, reference_statistics(logprobs.detach(), known.ref_logprobs))
    weighted = (losses + _regularisation(objective, known, logprobs, entropy)) * known.weights
    if known.slopes is not None:  # adds 0 to the value, and to the gradient what `linearised` found
        weighted = weighted + known.slopes * (logprobs - logprobs.detach())
    return weighted, statistics


def _regularisation(objective: Objective, known: TokenAxis, logprobs: Tensor, entropy: Tensor) -> Tensor:
    """[n] the divergence from the reference and the entropy bonus."""
    terms = torch.zeros_like(logprobs)
    if objective.kl_beta and known.ref_logprobs is not None:
        terms = terms + objective.kl_beta * kl_penalty(logprobs, known.ref_logprobs, objective.kl_estimator)
    if objective.entropy_bonus:
        terms = terms - objective.entropy_bonus * entropy
    return terms
