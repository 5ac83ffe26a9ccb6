"""The loss of a mini-batch, DAPO Eq. 8 to 12, read downwards from a micro-batch to its gradient.

    sum over tokens of  weight * (policy loss * correction + beta * KL - bonus * entropy)

- `loss_with_gradient`: hidden states -> log-probs, chunk by chunk -> loss and statistics -> gradient.
- `weighted_loss`: each token's part of the sum. The policy loss (Eq. 10) is one function of objective/losses.py.
- The weights (Eq. 12) hold the whole denominator: they come from objective/losses.py:completion_weights, and nothing
  is divided here. Advantages (Eq. 9) and rewards (Eq. 7, 13) are in the tokens already: switches/algorithm.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor
from transformers import PreTrainedModel

from dapo_lit.objective.diagnostics import reference_statistics
from dapo_lit.objective.losses import KLEstimator, kl_penalty
from dapo_lit.objective.tokens import NOTHING, Bounds, PolicyLoss, Statistics, Tokens, merge, token_statistics
from dapo_lit.policy.attention import packed_hidden
from dapo_lit.policy.head import Head, HeadPass
from dapo_lit.step.batch import MicroBatch, TokenBatch


@dataclass(frozen=True)
class TokenData:
    """The response tokens of a batch, or some of them. None means that no loss needs the field.

    Everything is detached. Scoring and the objective's `credit` fill it on the CPU, the same on every rank. The updates
    read a copy on the policy's device, made once per step so that no micro-batch waits for a transfer.
    """

    completions: Int64[Tensor, "n"]
    """The completion that the token belongs to."""
    completion_tokens: Int64[Tensor, "n"]
    """Response tokens of that completion, masked ones included."""
    loss_mask: Bool[Tensor, "n"]
    """False: the token carries no loss and counts in no denominator. Metrics include it."""
    rollout_logprobs: Float32[Tensor, "n"]
    """Nats, under the engine that sampled the token."""
    fresh: Bool[Tensor, "n"]
    """False: the token was sampled by older weights (carried over)."""
    old_logprobs: Float32[Tensor, "n"]
    """Nats, under the policy before the updates. Under the engine where pi_old is the engine's
    (old_logprobs=rollout, carried-over tokens), and where `unscored`, until the first update."""
    unscored: Bool[Tensor, "n"] | None = None
    """True: the first update's forward pass gives the old log-prob. None: all are known."""
    ref_logprobs: Float32[Tensor, "n"] | None = None
    """Nats, under the frozen reference."""
    values: Float32[Tensor, "n"] | None = None
    """The critic's, in the unit of the reward, for the state before the token."""
    corrections: Float32[Tensor, "n"] | None = None
    """Weight of the token's policy loss for the gap between `old_logprobs` and the policy that sampled it."""
    advantages: Float32[Tensor, "n"] | None = None
    """None until credit is assigned."""
    returns: Float32[Tensor, "n"] | None = None
    """What the critic is fitted to, in the unit of the reward."""
    weights: Float32[Tensor, "n"] | None = None
    """Weight of the token in the loss of the mini-batch at hand, 0 where masked; of a micro-batch only."""
    losses: Float32[Tensor, "n"] | None = None
    """Loss of the token, where the policy loss looks at the whole mini-batch. None: one that is a sum over tokens."""
    slopes: Float32[Tensor, "n"] | None = None
    """Derivative of the weighted sum of those losses by the token's log-prob."""

    def __getitem__(self, chosen: Tensor | slice) -> "TokenData":
        return self._each(lambda values: values[chosen])

    def weighted(self, of_completion: Float32[Tensor, "B"]) -> "TokenData":
        """With the weight that each token of a completion has; 0 where masked."""
        return replace(self, weights=of_completion[self.completions] * self.loss_mask)

    def scored_by(self, logprobs: Float[Tensor, "n"]) -> "TokenData":
        """With the log-probs of the policy before its first update as the old ones.

        Older weights sampled a carried-over token: its old log-prob stays the engine's.
        """
        return replace(self, old_logprobs=torch.where(self.fresh, logprobs.detach(), self.old_logprobs))

    def to(self, device: torch.device) -> "TokenData":
        return self._each(lambda values: values.to(device))

    def _each(self, function: Callable[[Tensor], Tensor]) -> "TokenData":
        filled = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        return replace(self, **{name: function(values) for name, values in filled.items()})


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
    entropy_control: Callable[[float, float], tuple[float, float]] | None
    """(coefficient, `policy/entropy`) of a step -> coefficient and bonus of the next; None: the bonus is constant."""
    kl_beta: float
    """Weight of the divergence from the reference in the loss of a token; 0: not in the loss."""
    kl_estimator: KLEstimator
    recomputes_old_logprobs: bool
    """pi_old comes from a forward pass of the trainer; False: from the engine that sampled."""
    credit: Callable[[TokenBatch, TokenData], TokenData]
    """The tokens with their advantages and, for a critic, returns."""
    weights: Callable[..., Float64[Tensor, "B"]]
    """(loss_tokens, group_index, micro_batch), each [B] of a whole mini-batch -> weight of a token with loss."""
    correction: Callable[[Float[Tensor, "N"], Float[Tensor, "N"], Int64[Tensor, "N"]], Float[Tensor, "N"]] | None
    """(old_logprobs, rollout_logprobs, completions) -> weights of the policy loss; None: all 1."""


def loss_with_gradient(
    model: PreTrainedModel,
    micro: MicroBatch,
    objective: Objective,
    tokens: TokenData,
    *,
    first_update: bool,
    temperature: float,
    fp32: bool,
    compiles: bool,
) -> tuple[Float[Tensor, ""], Float[Tensor, "n"], Statistics]:
    """The loss of a micro-batch; its log-probs (nats, detached); what is measured of its tokens.

    The gradient is computed on the way, while a chunk's logits are there: autograd takes over at the hidden states
    when the caller calls `backward` on the loss. A sharded model must be gathered.

    tokens: of the micro-batch, with weights.
    first_update: the policy is still the one before the updates, so this pass gives the old log-probs.
    temperature: of sampling; log-probs and entropies are those of the sampling distribution.
    """
    # Only positions that predict a response token: the head is the largest product, and prompts need no logits.
    hidden = packed_hidden(model, micro.input_ids, micro.packed)[micro.rows]
    head = HeadPass(
        hidden,
        Head.of(model),
        micro.targets,
        temperature=temperature,
        entropy_gradient=objective.entropy_bonus > 0,
        fp32=fp32,
        compiles=compiles,
    )
    loss, logprobs, statistics = hidden.new_zeros((), dtype=torch.float64), list[Tensor](), NOTHING
    for chunk in head.chunks():
        # Chunks cut tokens, not completions, which no loss here minds: what couples tokens of a completion goes through
        # `slopes` or `completions`.
        own = tokens[chunk.tokens]
        if first_update:
            own = own.scored_by(chunk.logprobs)  # ratio 1 by construction
        losses, measured = weighted_loss(objective, own, chunk.logprobs, chunk.entropy)
        part = losses.sum()
        # Now, while this chunk's probabilities exist; the next chunk takes their memory.
        chunk.backward(part)
        loss += part.detach()
        logprobs.append(chunk.logprobs.detach())
        # Sums and counts only, so that chunks, micro-batches and ranks add up in any order.
        statistics = merge(statistics, measured)
    return head.with_gradient(loss), torch.cat(logprobs), statistics


def weighted_loss(
    objective: Objective, tokens: TokenData, logprobs: Float[Tensor, "n"], entropy: Float[Tensor, "n"]
) -> tuple[Float[Tensor, "n"], Statistics]:
    """Each token's part of the loss of its mini-batch, and what is measured of these tokens.

    tokens: the same n, with advantages and weights.
    logprobs: nats under the policy, with gradient.
    entropy: nats, with gradient if there is a bonus.
    """
    assert tokens.advantages is not None
    assert tokens.weights is not None
    # Without the mask: whether a token carries loss is in its weight, and metrics of clipping go over all tokens.
    seen = Tokens(logprobs, tokens.old_logprobs, tokens.advantages, entropy.detach(), tokens.completion_tokens)
    if tokens.slopes is None:
        # Eq. 10 and its relatives.
        losses, statistics = objective.policy_loss(seen, objective.bounds)
        if tokens.corrections is not None:
            losses = losses * tokens.corrections
    else:
        # The loss looks at the whole mini-batch: its values and slopes are known from a pass before this one.
        assert tokens.losses is not None
        losses, statistics = tokens.losses, token_statistics(seen, objective.bounds)
    if tokens.ref_logprobs is not None:
        # Measured without a gradient even where the divergence is no part of the loss.
        statistics = merge(statistics, reference_statistics(logprobs.detach(), tokens.ref_logprobs))
    # No division: all of Eq. 12 is in the weights, which makes the sum over any split the same.
    weighted = (losses + _regularisation(objective, tokens, logprobs, entropy)) * tokens.weights  # Eq. 12
    # Adds 0 to the value, and to the gradient what `linearised` found.
    if tokens.slopes is not None:
        # logprobs - logprobs.detach() is 0 with derivative 1.
        weighted = weighted + tokens.slopes * (logprobs - logprobs.detach())
    return weighted, statistics


def _regularisation(
    objective: Objective, tokens: TokenData, logprobs: Float[Tensor, "n"], entropy: Float[Tensor, "n"]
) -> Float[Tensor, "n"]:
    """The divergence from the reference and the entropy bonus."""
    terms = torch.zeros_like(logprobs)
    if objective.kl_beta and tokens.ref_logprobs is not None:
        # In the loss, as in GRPO. With kl.where=reward the penalty is in the reward, and kl_beta is 0 here.
        terms = terms + objective.kl_beta * kl_penalty(logprobs, tokens.ref_logprobs, objective.kl_estimator)
    if objective.entropy_bonus:
        # Minus, because the loss is minimised and the entropy is to rise.
        terms = terms - objective.entropy_bonus * entropy
    return terms
