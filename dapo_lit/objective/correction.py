"""Weights for the gap between mu, the distribution that a token was sampled from, and pi_old, where the ratio starts.

The engine computes with other kernels than the trainer, and perhaps in another precision: mu differs from pi_old on the
same weights. PPO ignores the gap. With mu kept separate from pi_old the objective is

    E_mu[ w(pi_old / mu) * min(r A, clip(r) A) ],    r = pi / pi_old,

where w = pi_old / mu would be exact and unbounded. The three functions bound it in three ways. The weights are
detached, multiply only the policy loss of a token, and change no denominator: a token of weight 0 still counts, as in
the expectations of the sources. Where mu = pi_old all weights are 1, bit for bit.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dapo_lit.objective.tokens import MAX_LOG_RATIO, at_least_float32, importance_ratio


@torch.no_grad()
def truncated_weights(
    old_logprobs: Float[Tensor, "N"], rollout_logprobs: Float[Tensor, "N"], *, cap: float = 2.0
) -> Float[Tensor, "N"]:
    """Truncated importance sampling of each token: `min(pi_old / mu, cap)`, with a cap of at least 1.

    Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"; the cap of 2 is the
    default of verl's `rollout_is_threshold`, after it. `old_logprobs` are the trainer's, before the update, and
    `rollout_logprobs` those of the distribution that the tokens were drawn from; nats.

    >>> truncated_weights(torch.tensor([0.3, 0.6]).log(), torch.tensor([0.6, 0.2]).log(), cap=2.0)
    tensor([0.5000, 2.0000])
    """
    return importance_ratio(old_logprobs, rollout_logprobs).clamp(max=cap)


@torch.no_grad()
def icepop_weights(
    old_logprobs: Float[Tensor, "N"], rollout_logprobs: Float[Tensor, "N"], *, low: float = 0.5, high: float = 5.0
) -> Float[Tensor, "N"]:
    """IcePop: `k = pi_old / mu` of a token where `low <= k <= high`, else 0; the band must hold 1.

    Ling team 2025, "Small Leak Can Sink a Great Ship: Boost RL Training on MoE with IcePop!"; its band is [0.5, 5].

    >>> icepop_weights(torch.tensor([0.3, 0.3]).log(), torch.tensor([0.5, 0.9]).log(), low=0.5, high=5.0)
    tensor([0.6000, 0.0000])
    """
    ratio = importance_ratio(old_logprobs, rollout_logprobs)
    return torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)


@torch.no_grad()
def sequence_mask_weights(
    old_logprobs: Float[Tensor, "N"],
    rollout_logprobs: Float[Tensor, "N"],
    completions: Int[Tensor, "N"],
    *,
    low: float = 0.0,
    high: float = 2.0,
) -> Float[Tensor, "N"]:
    """Masked importance sampling of whole completions: `rho = prod_t pi_old / mu` at each token, 0 outside the band.

    Liu et al. 2025, "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch". An
    upper bound of 2 alone (low = 0) is the preset that its authors gave verl (`seq_mis`). The product goes with the
    length: a completion of 1,000 tokens leaves [0, 2] at a mean gap of 7e-4 nats a token. `completions` are equal for
    the tokens of one completion, all of which must be there. log rho is clamped to +-20.

    >>> sequence_mask_weights(
    ...     torch.tensor([0.3, 0.3, 0.9]).log(), torch.tensor([0.2, 0.4, 0.3]).log(), torch.tensor([0, 0, 1]),
    ...     low=0.0, high=2.0,
    ... )
    tensor([1.1250, 1.1250, 0.0000])
    """
    difference = at_least_float32(old_logprobs) - at_least_float32(rollout_logprobs)
    _, position = torch.unique(completions, return_inverse=True)
    # In float64: the sum over a long completion would lose two digits in float32.
    sums = difference.new_zeros(int(position.max()) + 1 if len(position) else 0, dtype=torch.float64)
    sums.index_add_(0, position, difference.double())
    rho = sums.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return torch.where((rho >= low) & (rho <= high), rho, 0.0)[position].to(difference.dtype)


CORRECTIONS: dict[str, Callable[..., Tensor]] = {
    "tis": truncated_weights,
    "sequence_mask": sequence_mask_weights,
    "icepop": icepop_weights,
}
"""By the value of `correction.kind`."""
