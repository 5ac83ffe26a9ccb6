"""Losses whose importance ratio belongs to a whole completion: GSPO, its token variant, and GMPO.

Each returns one value per token, so that the weights of losses.py apply; the papers' mean over completions of 1 / |y_i|
times the sum over tokens is `completion_weights(..., aggregation="sample")`. Arguments are those of every loss
(losses.py), each [N], and `completions`, [N] integers that are equal for the tokens of one completion, all of which
must be there.
"""

import torch
from torch import Tensor

from dapo_lit.objective.losses import MAX_LOG_RATIO, at_least_float32, clipped_surrogate


def gspo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    completions: Tensor,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """GSPO (arXiv 2507.18071, Eq. 5 and 7): `-min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)` with

        s_i = (pi(y_i) / pi_old(y_i))^(1 / |y_i|) = exp(mean_t log(pi(y_it) / pi_old(y_it)))

    Args:
        advantages: [N]; the mean over a completion's tokens is its advantage.
        clip_low, clip_high: the paper has 3e-4 and 4e-4 (section 5.1): a mean over tokens moves far less than a token.

    Returns:
        [N] the completion's loss at each of its tokens, float32 or wider.
    """
    advantage = completion_mean(at_least_float32(advantages), completions)
    log_ratio = at_least_float32(logprobs) - at_least_float32(old_logprobs)
    ratio = completion_mean(log_ratio, completions).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return clipped_surrogate(ratio, advantage, clip_low=clip_low, clip_high=clip_high)


def gspo_token_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    completions: Tensor,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """GSPO-token (arXiv 2507.18071, Eq. 13 and 14): `s_it = sg(s_i) pi(y_it) / sg(pi(y_it))` in place of s_i.

    Equal in value to s_i, but each token keeps an advantage of its own. With one advantage a completion and the
    completion's tokens weighing the same, value and gradient are those of GSPO.

    `advantages` are used token by token.
    """
    logprobs, advantages = at_least_float32(logprobs), at_least_float32(advantages)
    log_ratio = completion_mean(logprobs.detach() - at_least_float32(old_logprobs), completions)
    ratio = (log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) + logprobs - logprobs.detach()).exp()
    return clipped_surrogate(ratio, advantages, clip_low=clip_low, clip_high=clip_high)


def gmpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    completions: Tensor,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """GMPO (arXiv 2507.20673): `-A (prod_t rho_t)^(1 / |y|)`, the geometric mean of the clipped ratios.

    Each token's ratio is clipped in log space before the mean, on the side that A pushes to: at exp(clip_high) where
    A > 0, at exp(-clip_low) where A < 0. The paper clips at (e^-0.4, e^0.4).

    Args:
        advantages: [N]; the mean over a completion's tokens is its advantage.
        clip_low, clip_high: bounds of a token's log-ratio in nats, not of the ratio.

    Returns:
        [N] the completion's loss at each of its tokens, float32 or wider.
    """
    advantage = completion_mean(at_least_float32(advantages), completions)
    log_ratio = at_least_float32(logprobs) - at_least_float32(old_logprobs)
    log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    clipped = torch.where(advantage < 0, log_ratio.clamp(min=-clip_low), log_ratio.clamp(max=clip_high))
    return -advantage * completion_mean(clipped, completions).exp()


def completion_mean(values: Tensor, completions: Tensor) -> Tensor:
    """[N] the mean of `values` over the tokens of the same completion, at each token."""
    # In float64: the sum over a long completion, and that of its gradients, would lose two digits in float32.
    _, position, counts = torch.unique(completions, return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(counts), dtype=torch.float64).index_add(0, position, values.double())
    return (sums / counts)[position].to(values.dtype)
