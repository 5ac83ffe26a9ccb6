"""Statistics of the policy during the updates of a step: clipping, drift, entropy, mismatch, gradient noise.

The `*_statistics` functions give sums and counts, which add up over micro-batches, updates and ranks, and maxima, which
reduce by max. `merge` joins two of them, `finish` divides at the very end and gives the metrics their names. Everything
is over response tokens, whatever the loss masks, so no switch changes a definition. `gradient_noise` is separate:
gradients are already global.

Arguments throughout: `logprobs`, log-probabilities (nats) of the sampled tokens under the policy being trained, [B, T]
or [N]; `old_logprobs`, the same under the policy before the update; `response_mask`, bool, True at response tokens. All
of one shape; values outside the mask are ignored, also NaN.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dapo_lit.objective.losses import MAX_LOG_RATIO, clipped_tokens, importance_ratio, kl_penalty


class Statistics(NamedTuple):
    """Parts of the metrics, float64 tensors without a dimension.

    >>> parts = Statistics(sums={"response_tokens": torch.tensor(4.0), "clip_high": torch.tensor(1.0)}, maxima={})
    >>> finish(*merge(parts, parts))["clip/high_frac"]
    0.25
    """

    sums: dict[str, Tensor]
    """Reduce by sum, over micro-batches, updates and ranks."""
    maxima: dict[str, Tensor]
    """Reduce by max; -inf where there was nothing to take the maximum of."""


@torch.no_grad()
def policy_statistics(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None,
    entropy: Tensor,
    completion_tokens: Tensor | None = None,
) -> Statistics:
    """The sums behind `clip/*` and `policy/*`, of one micro-batch.

    - `clip/high_frac`: A > 0 and ratio > 1 + clip_high; `clip/low_frac`: A < 0 and ratio < 1 - clip_low;
      `clip/dual_frac`: A < 0 and ratio > clip_dual (0 without a dual clip). Shares of the response tokens.
    - `clip/symmetric_high_frac`: A > 0 and ratio > 1 + clip_low, whatever clip_high is: a symmetric clip cuts these.
    - `clip/high_prob_mean`, `clip/high_prob_max`: old-policy probability of the up-clipped tokens (DAPO Fig. 3a).
    - `policy/kl_old`: mean of `ratio - 1 - log ratio` (k3), with tokens of the old policy an unbiased estimate of
      KL(old || new), in nats per token; log-ratios clamped to +-20, as in the loss.
    - `policy/prob_mean`: mean of exp(old_logprobs), the probability that the sampled tokens had before the update, so
      that it does not depend on the number of updates a step (DAPO Fig. 7d).
    - `policy/entropy`, `policy/entropy_seq_mean`: mean over tokens; mean over completions of their mean (nats).

    Args:
        advantages: of each token, broadcastable.
        clip_low, clip_high, clip_dual: the bounds in effect, as in `clipped_policy_loss`.
        entropy: nats of the full next-token distribution at each token.
        completion_tokens: response tokens of the whole completion that a token belongs to, broadcastable. None counts
            each row of [B, T], which is wrong where rows are packed or cut; [N] needs it.

    Raises:
        ValueError: [N] without `completion_tokens`, or shapes that differ.
    """
    for name, values in (("logprobs", logprobs), ("old_logprobs", old_logprobs), ("entropy", entropy)):
        if values.shape != response_mask.shape:
            raise ValueError(
                f"{name} has shape {tuple(values.shape)}, response_mask {tuple(response_mask.shape)}; they must agree"
            )
    mask = response_mask.bool()
    if completion_tokens is None:
        if mask.ndim != 2:
            raise ValueError("completion_tokens is needed unless response_mask is [B, T], one completion a row")
        completion_tokens = mask.sum(dim=1, keepdim=True)
    logprobs, old_logprobs, entropy = (x.masked_fill(~mask, 0.0) for x in (logprobs, old_logprobs, entropy))
    ratio = importance_ratio(logprobs, old_logprobs)  # at the precision of the loss, so that both clip the same tokens
    log_ratio = (logprobs.double() - old_logprobs.double()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    old_prob = old_logprobs.double().exp()
    clipped_low, clipped_high, clipped_dual = (
        mask & found
        for found in clipped_tokens(ratio, advantages, clip_low=clip_low, clip_high=clip_high, clip_dual=clip_dual)
    )
    _, symmetric_high, _ = clipped_tokens(ratio, advantages, clip_low=clip_low, clip_high=clip_low)
    # 1 / length summed over a completion's tokens is 1: the mean of means adds up over any split of a completion.
    share = torch.where(mask, 1.0 / completion_tokens.double().clamp(min=1.0), 0.0)
    sums = {
        "response_tokens": _total(mask),
        "completions": _total(share),
        "clip_low": _total(clipped_low),
        "clip_high": _total(clipped_high),
        "clip_symmetric_high": _total(mask & symmetric_high),
        "clip_dual": _total(clipped_dual),
        "clip_high_prob": _total(old_prob * clipped_high),
        "kl_old": _total(torch.expm1(log_ratio) - log_ratio),
        "prob": _total(old_prob * mask),
        "entropy": _total(entropy),
        "entropy_seq": _total(entropy * share),
    }
    maxima = {"clip_high_prob": _largest(old_prob, clipped_high), "ratio": _largest(ratio, mask)}
    return Statistics(sums, maxima)


@torch.no_grad()
def last_epoch_statistics(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> Statistics:
    """The sums behind `clip/{low,high,symmetric_high}_frac_last_epoch`, over response tokens [N].

    Batches that are used again clip more in later epochs than in the first, which `policy_statistics` is of.
    """
    ratio = importance_ratio(logprobs, old_logprobs)
    low, high, _ = clipped_tokens(ratio, advantages, clip_low=clip_low, clip_high=clip_high)
    _, symmetric_high, _ = clipped_tokens(ratio, advantages, clip_low=clip_low, clip_high=clip_low)
    sums = {
        "last_tokens": _total(torch.ones_like(ratio)),
        "last_clip_low": _total(low),
        "last_clip_high": _total(high),
        "last_clip_symmetric_high": _total(symmetric_high),
    }
    return Statistics(sums, {})


@torch.no_grad()
def mismatch_statistics(trainer_logprobs: Tensor, rollout_logprobs: Tensor, response_mask: Tensor) -> Statistics:
    """The sums behind `mismatch/*`: trainer against engine on the same weights.

    - `mismatch/kl`: mean of `r - 1 - log r` with r = trainer / engine (k3), an estimate of KL(engine || trainer) in
      nats per token; log-ratios clamped to +-20.
    - `mismatch/prob_diff_max`: largest absolute difference in the probability of a sampled token.

    Args:
        trainer_logprobs: in the trainer, under the weights that sampled the tokens: `old_logprobs` where those are
            recomputed, else `logprobs` of a step's first update.
        rollout_logprobs: the same as the engine gave them.

    Raises:
        ValueError: shapes that differ.
    """
    if not trainer_logprobs.shape == rollout_logprobs.shape == response_mask.shape:
        raise ValueError(
            "trainer_logprobs, rollout_logprobs and response_mask must have one shape, got "
            f"{tuple(trainer_logprobs.shape)}, {tuple(rollout_logprobs.shape)}, {tuple(response_mask.shape)}"
        )
    mask = response_mask.bool()
    trainer = trainer_logprobs.double().masked_fill(~mask, 0.0)
    engine = rollout_logprobs.double().masked_fill(~mask, 0.0)
    log_ratio = (trainer - engine).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    sums = {"mismatch_tokens": _total(mask), "mismatch_kl": _total(torch.expm1(log_ratio) - log_ratio)}
    return Statistics(sums, {"prob_diff": _largest((trainer.exp() - engine.exp()).abs(), mask)})


@torch.no_grad()
def correction_statistics(weights: Tensor) -> Statistics:
    """The sums behind `mismatch/correction_mean`, the mean weight, and `mismatch/masked_frac`, the share of weight 0.

    weights: of each response token, from objective/correction.py.
    """
    sums = {
        "corrected_tokens": _total(torch.ones_like(weights)),
        "correction": _total(weights),
        "correction_masked": _total(weights == 0),
    }
    return Statistics(sums, {})


@torch.no_grad()
def reference_statistics(logprobs: Tensor, ref_logprobs: Tensor, response_mask: Tensor) -> Statistics:
    """The sum behind `policy/kl_ref`: mean of k3, an estimate of KL(policy || reference) in nats per token.

    k3 whatever estimator a loss uses, log-ratios clamped to +-20. The tokens are those of the old policy, so it
    estimates the policy's own divergence at the first update only.
    """
    mask = response_mask.bool()
    penalty = kl_penalty(logprobs.double(), ref_logprobs.double(), "k3")
    return Statistics({"reference_tokens": _total(mask), "kl_ref": _total(torch.where(mask, penalty, 0.0))}, {})


def merge(first: Statistics, second: Statistics) -> Statistics:
    """Adds the sums and takes the maximum of the maxima; a part that only one has is kept."""
    sums, maxima = dict(first.sums), dict(first.maxima)
    for name, value in second.sums.items():
        sums[name] = sums[name] + value if name in sums else value
    for name, value in second.maxima.items():
        maxima[name] = torch.maximum(maxima[name], value) if name in maxima else value
    return Statistics(sums, maxima)


def finish(sums: dict[str, Tensor], maxima: dict[str, Tensor]) -> dict[str, float | None]:
    """The metrics under their frozen names, from parts reduced over micro-batches, updates and ranks.

    None where a count is 0 or a part is missing. It waits for the device once per part: call it once per step.
    """
    total = {name: float(value) for name, value in sums.items()}
    largest = {name: float(value) for name, value in maxima.items()}

    def mean(name: str, count: str) -> float | None:
        if name not in total or not total.get(count):
            return None
        return total[name] / total[count]

    def maximum(name: str) -> float | None:
        value = largest.get(name, -torch.inf)
        return None if value == -torch.inf else value

    # With one epoch, the last is the first.
    last, last_tokens = ("last_", "last_tokens") if "last_tokens" in total else ("", "response_tokens")
    return {
        "clip/low_frac": mean("clip_low", "response_tokens"),
        "clip/high_frac": mean("clip_high", "response_tokens"),
        "clip/low_frac_last_epoch": mean(f"{last}clip_low", last_tokens),
        "clip/high_frac_last_epoch": mean(f"{last}clip_high", last_tokens),
        "clip/symmetric_high_frac": mean("clip_symmetric_high", "response_tokens"),
        "clip/symmetric_high_frac_last_epoch": mean(f"{last}clip_symmetric_high", last_tokens),
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

    so it needs one running sum of the gradient in memory. 1 means that the noise of one update is as large as the mean
    gradient. With nothing but noise the ratio levels off at U, as the mean of U noisy gradients is itself too long.
    Updates of one step start from different weights: drift between them counts as noise.

    Args:
        sum_of_squared_norms: sum over the updates of the squared global gradient norm.
        squared_norm_of_sum: squared global norm of the sum of those gradients.
        num_updates: U; skipped updates count in none of the three.

    Returns:
        A pure number, None for fewer than two updates or where the gradients sum to 0.
    """
    squared_sum = float(squared_norm_of_sum)
    if num_updates < 2 or squared_sum == 0.0:
        return None
    # Rounding can leave equal gradients a variance just below 0.
    variance = max(float(sum_of_squared_norms) - squared_sum / num_updates, 0.0) / (num_updates - 1)
    return variance * num_updates**2 / squared_sum


def _total(values: Tensor) -> Tensor:
    return values.sum(dtype=torch.float64)


def _largest(values: Tensor, where: Tensor) -> Tensor:
    """Maximum over the positions in `where`, -inf for none, also of an empty tensor."""
    floor = values.new_full((1,), -torch.inf, dtype=torch.float64)
    return torch.cat([values.double().masked_fill(~where, -torch.inf).flatten(), floor]).amax()
