"""Losses whose importance ratio belongs to a whole completion: GSPO, its token variant, and GMPO.

Each is a `PolicyLoss` (tokens.py) that needs `completions`, and gives the completion's loss at each of its tokens, so
that the weights of losses.py apply: the papers' mean over completions of 1 / |y_i| times the sum over tokens is
`completion_weights(..., aggregation="sample")`.
"""

import torch
from torch import Tensor

from dapo_lit.objective.losses import clipped_surrogate
from dapo_lit.objective.tokens import MAX_LOG_RATIO, Bounds, Statistics, Tokens, at_least_float32, token_statistics


def gspo_loss(tokens: Tokens, bounds: Bounds) -> tuple[Tensor, Statistics]:
    """GSPO (arXiv 2507.18071, Eq. 5 and 7): `-min(s A, clip(s, 1 - low, 1 + high) A)` with

        s_i = (pi(y_i) / pi_old(y_i))^(1 / |y_i|) = exp(mean_t log(pi(y_it) / pi_old(y_it)))

    and A the mean over the completion's tokens. The paper's bounds are 3e-4 and 4e-4 (section 5.1): a mean over tokens
    changes far less than a token.
    """
    log_ratio = at_least_float32(tokens.logprobs) - at_least_float32(tokens.old_logprobs)
    ratio = _mean(log_ratio, tokens).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    advantage = _mean(at_least_float32(tokens.advantages), tokens)
    losses = clipped_surrogate(ratio, advantage, Bounds(bounds.low, bounds.high))
    return losses, token_statistics(tokens, bounds)


def gspo_token_loss(tokens: Tokens, bounds: Bounds) -> tuple[Tensor, Statistics]:
    """GSPO-token (arXiv 2507.18071, Eq. 13 and 14): `s_it = sg(s_i) pi(y_it) / sg(pi(y_it))` in place of s_i.

    Equal in value to s_i, but each token keeps an advantage of its own. With one advantage a completion and the
    completion's tokens weighing the same, value and gradient are those of GSPO.
    """
    logprobs = at_least_float32(tokens.logprobs)
    log_ratio = _mean(logprobs.detach() - at_least_float32(tokens.old_logprobs), tokens)
    ratio = (log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) + logprobs - logprobs.detach()).exp()
    losses = clipped_surrogate(ratio, at_least_float32(tokens.advantages), Bounds(bounds.low, bounds.high))
    return losses, token_statistics(tokens, bounds)


def gmpo_loss(tokens: Tokens, bounds: Bounds) -> tuple[Tensor, Statistics]:
    """GMPO (arXiv 2507.20673): `-A (prod_t rho_t)^(1 / |y|)`, the geometric mean of the clipped ratios.

    Each token's ratio is clipped in log space before the mean, on the side that A pushes to: at exp(high) where A > 0,
    at exp(-low) where A < 0. The bounds are nats, not ratios; the paper clips at (e^-0.4, e^0.4). A is the mean over
    the completion's tokens.
    """
    advantage = _mean(at_least_float32(tokens.advantages), tokens)
    log_ratio = at_least_float32(tokens.logprobs) - at_least_float32(tokens.old_logprobs)
    log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    clipped = torch.where(advantage < 0, log_ratio.clamp(min=-bounds.low), log_ratio.clamp(max=bounds.high))
    return -advantage * _mean(clipped, tokens).exp(), token_statistics(tokens, bounds)


def completion_mean(values: Tensor, completions: Tensor) -> Tensor:
    """[N] the mean of `values` over the tokens of the same completion, at each token."""
    # In float64: the sum over a long completion, and that of its gradients, would lose two digits in float32.
    _, position, counts = torch.unique(completions, return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(counts), dtype=torch.float64).index_add(0, position, values.double())
    return (sums / counts)[position].to(values.dtype)


def _mean(values: Tensor, tokens: Tokens) -> Tensor:
    assert tokens.completions is not None
    return completion_mean(values, tokens.completions)
