"""Statistics of a step besides those of its policy loss, and the metrics that all of them become.

The `*_statistics` functions give sums, counts and maxima, which add up over micro-batches, updates and ranks
(tokens.merge); `finish` divides at the very end and gives the metrics their names. Everything is over response tokens,
whatever the loss masks, so no switch changes a definition. `gradient_noise` is separate: gradients are already global.
Log-probs are nats, of the sampled tokens.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dapo_lit.objective.losses import kl_penalty
from dapo_lit.objective.tokens import MAX_LOG_RATIO, NOTHING, Statistics, largest, total


@torch.no_grad()
def mismatch_statistics(
    trainer_logprobs: Float[Tensor, "n"], rollout_logprobs: Float[Tensor, "n"], where: Bool[Tensor, "n"]
) -> Statistics:
    """The sums behind `mismatch/*`: trainer against engine on the same weights, over the tokens in `where`.

    - `mismatch/kl`: mean of `r - 1 - log r` with r = trainer / engine (k3), an estimate of KL(engine || trainer) in
      nats per token; log-ratios clamped to +-20.
    - `mismatch/prob_diff_max`: largest absolute difference in the probability of a sampled token.

    trainer_logprobs: under the weights that sampled the tokens: `old_logprobs` where those are recomputed, else
    `logprobs` of a step's first update. Values outside `where` are ignored, also NaN.
    """
    # In place: over the tokens of a whole step, new memory costs more than the arithmetic.
    trainer, engine = (
        logprobs.to(torch.float64, copy=True).masked_fill_(~where, 0.0)
        for logprobs in (trainer_logprobs, rollout_logprobs)
    )
    log_ratio = (trainer - engine).clamp_(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    sums = {"mismatch_tokens": total(where), "mismatch_kl": total(torch.expm1(log_ratio).sub_(log_ratio))}
    return Statistics(sums, {"prob_diff": largest(trainer.exp_().sub_(engine.exp_()).abs_(), where)})


@torch.no_grad()
def correction_statistics(weights: Float[Tensor, "n"]) -> Statistics:
    """The sums behind `mismatch/correction_mean`, the mean weight, and `mismatch/masked_frac`, the share of weight 0.

    weights: of each response token, from objective/correction.py.
    """
    sums = {
        "corrected_tokens": total(torch.ones_like(weights)),
        "correction": total(weights),
        "correction_masked": total(weights == 0),
    }
    return Statistics(sums, {})


@torch.no_grad()
def reference_statistics(logprobs: Float[Tensor, "n"], ref_logprobs: Float[Tensor, "n"]) -> Statistics:
    """The sum behind `policy/kl_ref`: mean of k3, an estimate of KL(policy || reference) in nats per token.

    k3 whatever estimator a loss uses, log-ratios clamped to +-20. The tokens are those of the old policy, so it
    estimates the policy's own divergence at the first update only.
    """
    penalty = kl_penalty(logprobs.double(), ref_logprobs.double(), "k3")
    return Statistics({"reference_tokens": total(torch.ones_like(penalty)), "kl_ref": total(penalty)}, {})


def finish(first: Statistics, last: Statistics = NOTHING) -> dict[str, float | None]:
    """The metrics under their frozen names, from parts reduced over micro-batches, updates and ranks.

    `first` is of the first epoch of a step, with what is measured once a step; `last` of the last epoch, which clips
    more, and empty if that is the first. None where a count is 0 or a part is missing. It waits for the device once per
    part: call it once per step.
    """

    def mean(name: str, count: str, epoch: Statistics = first) -> float | None:
        divisor = float(epoch.sums.get(count, 0.0))
        return float(epoch.sums[name]) / divisor if divisor and name in epoch.sums else None

    def maximum(name: str) -> float | None:
        value = float(first.maxima.get(name, -torch.inf))
        return None if value == -torch.inf else value

    last = last if last.sums else first
    return {
        "clip/low_frac": mean("clip_low", "response_tokens"),
        "clip/high_frac": mean("clip_high", "response_tokens"),
        "clip/low_frac_last_epoch": mean("clip_low", "response_tokens", last),
        "clip/high_frac_last_epoch": mean("clip_high", "response_tokens", last),
        "clip/symmetric_high_frac": mean("clip_symmetric_high", "response_tokens"),
        "clip/symmetric_high_frac_last_epoch": mean("clip_symmetric_high", "response_tokens", last),
        "clip/dual_frac": mean("clip_dual", "response_tokens"),
        "clip/high_prob_mean": mean("clip_high_prob", "clip_high"),
        "clip/high_prob_max": maximum("clip_high_prob"),
        "policy/kl_old": mean("kl_old", "response_tokens"),
        "policy/kl_ref": mean("kl_ref", "reference_tokens"),
        "policy/ratio_max": maximum("ratio"),
        "policy/prob_mean": mean("prob", "response_tokens"),
        "policy/entropy": mean("entropy", "response_tokens"),
        "policy/entropy_seq_mean": mean("entropy_seq", "completions"),
        "mismatch/kl": mean("mismatch_kl", "mismatch_tokens"),
        "mismatch/prob_diff_max": maximum("prob_diff"),
        "mismatch/correction_mean": mean("correction", "corrected_tokens"),
        "mismatch/masked_frac": mean("correction_masked", "corrected_tokens"),
    }


def gradient_noise(
    sum_of_squared_norms: Tensor | float, squared_norm_of_sum: Tensor | float, num_updates: int
) -> float | None:
    """`optim/grad_noise`: variance of the gradient between the updates of a step over its squared mean.

    With the gradients g_1 .. g_U of a step's updates, before clipping, and their mean m:

        (sum_u |g_u - m|^2 / (U - 1)) / |m|^2
        = U^2 / (U - 1) * (sum_u |g_u|^2 - |sum_u g_u|^2 / U) / |sum_u g_u|^2

    so it needs one running sum of the gradient in memory. Norms are global; skipped updates count in none of the three
    arguments. 1 means that the noise of one update is as large as the mean gradient. With nothing but noise the ratio
    levels off at U, as the mean of U noisy gradients is itself too long. Updates of one step start from different
    weights: drift between them counts as noise. None for fewer than two updates or where the gradients sum to 0.
    """
    squared_sum = float(squared_norm_of_sum)
    if num_updates < 2 or squared_sum == 0.0:
        return None
    # Rounding can leave equal gradients a variance just below 0.
    variance = max(float(sum_of_squared_norms) - squared_sum / num_updates, 0.0) / (num_updates - 1)
    return variance * num_updates**2 / squared_sum
