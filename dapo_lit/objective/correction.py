"""Weights for the gap between mu, the distribution that a token was sampled from, and pi_old, where the ratio starts.

The engine computes with other kernels than the trainer, and perhaps in another precision: mu differs from pi_old on the
same weights. PPO ignores the gap. With mu kept separate from pi_old the objective is

    E_mu[ w(pi_old / mu) * min(r A, clip(r) A) ],    r = pi / pi_old,

where w = pi_old / mu would be exact and unbounded. The functions bound it in three times three ways: the ratio is that
of the token, of its completion, or the geometric mean over the completion (`ratios`); a band of it bounds the weight,
says which tokens carry loss, or both (`bounded`). The weights are detached, multiply only the policy loss of a token,
and change no denominator: a token of weight 0 still counts, as in the expectations of the sources. Where mu = pi_old
all weights are 1, bit for bit.
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dapo_lit.objective.tokens import MAX_LOG_RATIO, at_least_float32, importance_ratio

Level = Literal["token", "sequence", "geometric"]
Effect = Literal["weigh", "mask", "both"]


def ratios(
    old_logprobs: Float[Tensor, "N"], rollout_logprobs: Float[Tensor, "N"], completions: Int[Tensor, "N"], level: Level
) -> Float[Tensor, "N"]:
    """pi_old / mu of each token; the product over its completion; or the geometric mean over it.

    `completions` are equal for the tokens of one completion, all of which must be there. Logarithms are clamped to
    +-20.

    >>> old, mu = torch.tensor([0.3, 0.3]).log(), torch.tensor([0.15, 0.075]).log()  # ratios 2 and 4
    >>> tuple(round(ratios(old, mu, torch.tensor([0, 0]), level)[0].item(), 4) for level in ("sequence", "geometric"))
    (8.0, 2.8284)
    """
    if level == "token":
        return importance_ratio(old_logprobs, rollout_logprobs)
    difference = at_least_float32(old_logprobs) - at_least_float32(rollout_logprobs)
    _, position, counts = torch.unique(completions, return_inverse=True, return_counts=True)
    # In float64: the sum over a long completion would lose two digits in float32.
    sums = difference.new_zeros(len(counts), dtype=torch.float64).index_add_(0, position, difference.double())
    logarithm = sums / counts if level == "geometric" else sums
    return logarithm.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()[position]


def bounded(ratio: Float[Tensor, "N"], effect: Effect, low: float, high: float) -> Float[Tensor, "N"]:
    """The weight of a ratio: kept within the band, 1 inside of it and 0 outside, or the ratio inside and 0 outside.

    >>> ratio = torch.tensor([0.25, 1.5, 4.0])
    >>> tuple(bounded(ratio, effect, 0.5, 2.0).tolist() for effect in ("weigh", "mask", "both"))
    ([0.5, 1.5, 2.0], [0.0, 1.0, 0.0], [0.0, 1.5, 0.0])
    """
    if effect == "weigh":
        return ratio.clamp(low, high)
    inside = (ratio >= low) & (ratio <= high)
    return torch.where(inside, torch.ones_like(ratio) if effect == "mask" else ratio, 0.0)


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
    return bounded(importance_ratio(old_logprobs, rollout_logprobs), "both", low, high)


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
    rho = ratios(old_logprobs, rollout_logprobs, completions, "sequence")
    return bounded(rho, "both", low, high).to(at_least_float32(old_logprobs).dtype)


def _of(level: Level, effect: Effect, band: tuple[float, float]) -> Callable[..., Tensor]:
    """A member of the family without a name of its own in the literature."""

    @torch.no_grad()
    def weights(
        old_logprobs: Float[Tensor, "N"],
        rollout_logprobs: Float[Tensor, "N"],
        completions: Int[Tensor, "N"],
        *,
        low: float = band[0],
        high: float = band[1],
    ) -> Float[Tensor, "N"]:
        ratio = ratios(old_logprobs, rollout_logprobs, completions, level)
        return bounded(ratio, effect, low, high).to(at_least_float32(old_logprobs).dtype)

    return weights


CORRECTIONS: dict[str, Callable[..., Tensor]] = {
    "tis": truncated_weights,
    "mask_tokens": _of("token", "mask", (0.5, 5.0)),  # IcePop's band
    "icepop": icepop_weights,
    "weigh_sequences": _of("sequence", "weigh", (0.0, 2.0)),  # verl's threshold of rollout_is=sequence
    "mask_sequences": _of("sequence", "mask", (0.5, 2.0)),  # verl's preset decoupled_seq_is_rs
    "sequence_mask": sequence_mask_weights,
    "weigh_geometric": _of("geometric", "weigh", (0.0, 2.0)),
    "mask_geometric": _of("geometric", "mask", (0.999, 1.001)),  # verl's preset decoupled_geo_rs
    "weigh_and_mask_geometric": _of("geometric", "both", (0.999, 1.001)),
}
"""By the value of `correction.kind`: the ratio of a token, of a completion, its geometric mean; each as a weight, as a
mask, as both."""
