"""The arguments and the statistics of every policy loss: `loss(tokens, bounds) -> (loss of each token, statistics)`.

The statistics are sums, counts and maxima over the response tokens, whatever the loss and its mask, so that no switch
changes the definition of a metric. `diagnostics.finish` divides at the very end.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 nats: exp(20) = 4.9e8 is finite in float32, also when squared in a gradient norm."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of the ratio in effect (DAPO Eq. 10), which the loss applies and the metrics count by."""

    low: float
    """Largest fall of the ratio below 1 where A < 0; in [0, 1]."""
    high: float
    """Largest rise of the ratio above 1 where A > 0. With `high == low` it is the clip of PPO and GRPO."""
    dual: float | None = None
    """Largest ratio that counts where A < 0, above 1 (arXiv 1912.09729; verl's `clip_ratio_c`); None: no bound."""


@dataclass(frozen=True)
class Tokens:
    """n response tokens. What may be None is needed by some losses only."""

    logprobs: Float[Tensor, "n"]
    """Log-probabilities (nats) under the policy being trained, with gradient."""
    old_logprobs: Float[Tensor, "n"]
    """The same under the policy before the update."""
    advantages: Float[Tensor, "n"]
    entropy: Float[Tensor, "n"] | None = None
    """Nats of the full next-token distribution at the token, without gradient."""
    completion_tokens: Int[Tensor, "n"] | None = None
    """Response tokens of the whole completion that the token belongs to."""
    completions: Int[Tensor, "n"] | None = None
    """Equal for the tokens of one completion, all of which are there."""
    mask: Bool[Tensor, "n"] | None = None
    """False: the token carries no loss."""
    generator: torch.Generator | None = None
    """Source of a loss's random numbers, on the CPU; seeded by run, step and mini-batch."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            # Broadcasting would make [n, n] of a [n, 1] without an error, and its mean looks like a loss.
            if isinstance(value, Tensor) and value.shape != self.logprobs.shape:
                raise ValueError(f"{field.name} is {tuple(value.shape)}, logprobs {tuple(self.logprobs.shape)}")


class Statistics(NamedTuple):
    """Parts of the metrics."""

    sums: dict[str, Float64[Tensor, ""]]
    """Reduce by sum, over micro-batches, updates and ranks."""
    maxima: dict[str, Float64[Tensor, ""]]
    """Reduce by max; -inf where there was nothing to take the maximum of."""


NOTHING = Statistics({}, {})

PolicyLoss = Callable[[Tokens, Bounds], tuple[Float[Tensor, "n"], Statistics]]
"""The loss of each token, float32 or wider and not masked yet, and what is measured of all of them.

The caller leaves out tokens without loss by selection or `torch.where`: 0 * NaN is NaN."""


def at_least_float32(values: Tensor) -> Tensor:
    """`values` in float32 or its own wider dtype: bfloat16 resolves log-probs of 1 nat to 0.4 % only."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def importance_ratio(logprobs: Float[Tensor, "n"], old_logprobs: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """`r = pi(token) / pi_old(token)` of DAPO Eq. 9, in (2e-9, 5e8), differentiable in `logprobs`.

    The log-ratio is clamped to +-20 nats, as in verl. Beyond that the exponential overflows float32 (from 88 nats on),
    and one such token would make the loss of the whole mini-batch infinite. A clamped token has no gradient. Nothing is
    lost: at -20 the true gradient is below 1e-8 of an ordinary one, and at +20 either the clip removes it (A > 0) or it
    would be 5e8 times an ordinary one (A < 0), which no optimiser survives.
    """
    # Widened before the subtraction: the difference of two bfloat16 numbers has lost what the ratio is about.
    log_ratio = at_least_float32(logprobs) - at_least_float32(old_logprobs)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_tokens(
    ratio: Float[Tensor, "n"], advantages: Float[Tensor, "n"], bounds: Bounds
) -> tuple[Bool[Tensor, "n"], Bool[Tensor, "n"], Bool[Tensor, "n"]]:
    """Masks of the tokens without gradient: their ratio is past the (lower, upper, dual) bound of DAPO Eq. 10.

    A token is past one bound at most. One exactly at a bound is not past it and keeps its whole gradient: at the kink
    every gradient between 0 and that is valid, and TRL and verl have the same rule at the first two bounds.

    >>> low, high, dual = clipped_tokens(
    ...     torch.tensor([1.3, 1.3, 0.7]), torch.tensor([1.0, -1.0, -1.0]), Bounds(low=0.2, high=0.28)
    ... )
    >>> low.tolist(), high.tolist(), dual.tolist()
    ([False, False, True], [True, False, False], [False, False, False])
    """
    return (
        (advantages < 0) & (ratio < 1 - bounds.low),
        (advantages > 0) & (ratio > 1 + bounds.high),  # DAPO 3.1 clip-higher: the two bounds are decoupled
        (advantages < 0) & (ratio > (torch.inf if bounds.dual is None else bounds.dual)),
    )


@torch.no_grad()
def token_statistics(tokens: Tokens, bounds: Bounds) -> Statistics:
    """The sums behind `clip/*` and `policy/*`.

    - `clip/high_frac`: A > 0 and ratio > 1 + high; `clip/low_frac`: A < 0 and ratio < 1 - low; `clip/dual_frac`: A < 0
      and ratio > dual (0 without a dual clip). Shares of the tokens, whatever ratio the loss itself clips.
    - `clip/symmetric_high_frac`: A > 0 and ratio > 1 + low, whatever `high` is: a symmetric clip cuts these.
    - `clip/high_prob_mean`, `clip/high_prob_max`: old-policy probability of the up-clipped tokens (DAPO Fig. 3a).
    - `policy/kl_old`: mean of `ratio - 1 - log ratio` (k3), with tokens of the old policy an unbiased estimate of
      KL(old || new), in nats per token; log-ratios clamped to +-20, as in the loss.
    - `policy/prob_mean`: mean of exp(old_logprobs), the probability that the sampled tokens had before the update, so
      that it does not depend on the number of updates a step (DAPO Fig. 7d).
    - `policy/entropy`, `policy/entropy_seq_mean`: mean over tokens; mean over completions of their mean (nats). Left
      out where the tokens lack `entropy` or `completion_tokens`.
    """
    new, old = tokens.logprobs, tokens.old_logprobs
    # At the precision of the loss, so that both clip the same tokens.
    ratio = importance_ratio(new, old)
    # Float64, as k3 is a difference of nearly equal numbers near ratio 1.
    log_ratio = (new.double() - old.double()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    old_prob = old.double().exp()
    low, high, dual = clipped_tokens(ratio, tokens.advantages, bounds)
    # At the lower bound's width: what a symmetric clip would cut, in runs with and without clip-higher alike.
    _, symmetric_high, _ = clipped_tokens(ratio, tokens.advantages, Bounds(bounds.low, bounds.low))
    sums = {
        "response_tokens": total(torch.ones_like(ratio)),
        "clip_low": total(low),
        "clip_high": total(high),
        "clip_symmetric_high": total(symmetric_high),
        "clip_dual": total(dual),
        "clip_high_prob": total(old_prob * high),
        "kl_old": total(torch.expm1(log_ratio) - log_ratio),
        "prob": total(old_prob),
    }
    if tokens.entropy is not None and tokens.completion_tokens is not None:
        # 1 / length summed over a completion's tokens is 1: the mean of means adds up over any split of a completion.
        share = 1.0 / tokens.completion_tokens.double()
        sums |= {
            "completions": total(share),
            "entropy": total(tokens.entropy),
            "entropy_seq": total(tokens.entropy * share),
        }
    return Statistics(sums, {"clip_high_prob": largest(old_prob, high), "ratio": largest(ratio)})


def merge(first: Statistics, second: Statistics) -> Statistics:
    """Adds the sums and takes the maximum of the maxima; a part that only one has is kept."""
    sums, maxima = dict(first.sums), dict(first.maxima)
    for name, value in second.sums.items():
        sums[name] = sums[name] + value if name in sums else value
    for name, value in second.maxima.items():
        maxima[name] = torch.maximum(maxima[name], value) if name in maxima else value
    return Statistics(sums, maxima)


def total(values: Tensor) -> Float64[Tensor, ""]:
    return values.sum(dtype=torch.float64)


def largest(values: Float[Tensor, "n"], where: Bool[Tensor, "n"] | None = None) -> Float64[Tensor, ""]:
    """Maximum over the positions in `where`, -inf for none; by filling, since selecting makes the host wait."""
    chosen = values.double() if where is None else values.double().masked_fill(~where, -torch.inf)
    return torch.cat([chosen.flatten(), chosen.new_full((1,), -torch.inf)]).amax()
