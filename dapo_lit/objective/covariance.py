"""Clip-Cov and KL-Cov (arXiv 2505.22617): hold back the few tokens that drive the entropy down.

The change of entropy in an update is minus the covariance of log-probability and advantage over the tokens (the
paper's section 3). Both look at each token's addend of it,

    Cov_t = (log pi(y_t) - mean log pi) (A_t - mean A),

and act on few tokens where it is large. Means are over the tokens of the mini-batch that carry loss. The first three
arguments are those of every loss (losses.py), each [N], for a whole mini-batch.
"""

import torch
from torch import Tensor

from dapo_lit.objective.losses import at_least_float32, clipped_policy_loss, clipped_tokens, importance_ratio


def token_covariance(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """[N] Cov_t of the tokens in `mask`, 0 elsewhere; detached."""
    mask = mask.bool()
    logprobs, advantages = at_least_float32(logprobs).detach(), at_least_float32(advantages).detach()
    if not mask.any():
        return torch.zeros_like(logprobs)
    deviation = (logprobs - logprobs[mask].mean()) * (advantages - advantages[mask].mean())
    return torch.where(mask, deviation, 0.0)


def clip_cov_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    mask: Tensor,
    clip_low: float,
    clip_high: float,
    frac: float = 2e-4,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Clip-Cov (section 4.2): a random few of the tokens with `cov_low < Cov_t < cov_high` carry no loss.

    PPO's clip stays in place, as in the authors' code, and tokens that it cuts are not among the candidates.

    Args:
        mask: [N] bool, the tokens that carry loss.
        clip_low, clip_high: as in `clipped_policy_loss`.
        frac: share of the tokens that is held back at most; at least one token is. The paper: 2e-4.
        cov_low, cov_high: open interval of Cov_t. The paper: 1 and 5.
        generator: where the choice is drawn from, on the CPU; None: torch's own.

    Returns:
        [N] float32 or wider; exactly 0, without gradient, at the tokens held back.
    """
    loss = clipped_policy_loss(logprobs, old_logprobs, advantages, clip_low=clip_low, clip_high=clip_high)
    mask = mask.bool()
    ratio = importance_ratio(logprobs, old_logprobs).detach()
    low, high, _ = clipped_tokens(ratio, at_least_float32(advantages), clip_low=clip_low, clip_high=clip_high)
    covariance = token_covariance(logprobs, advantages, mask)
    candidates = (mask & ~(low | high) & (covariance > cov_low) & (covariance < cov_high)).nonzero().flatten()
    count = min(len(candidates), max(1, int(frac * int(mask.sum()))))
    order = torch.randperm(len(candidates), generator=generator).to(candidates.device)
    held_back = torch.zeros_like(mask)
    held_back[candidates[order[:count]]] = True
    return torch.where(held_back, 0.0, loss)


def kl_cov_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    mask: Tensor,
    frac: float = 2e-4,
    coefficient: float = 1.0,
) -> Tensor:
    """KL-Cov (section 4.2): `-r A`, and at the tokens of largest Cov_t a penalty on moving from the old policy.

    The ratio is not clipped. The penalty is `coefficient * |log r|`, the authors' estimate of the KL at one token.

    Args:
        mask: [N] bool, the tokens that carry loss.
        frac: share of the tokens that is penalised; at least one token is. The paper: 2e-3 at 7B, 2e-4 at 32B.
        coefficient: loss a nat. The paper: 1.

    Returns:
        [N] float32 or wider.
    """
    mask = mask.bool()
    loss = -at_least_float32(advantages) * importance_ratio(logprobs, old_logprobs)
    if not mask.any():
        return loss
    covariance = token_covariance(logprobs, advantages, mask).masked_fill(~mask, -torch.inf)
    chosen = covariance.topk(max(1, int(frac * int(mask.sum())))).indices
    penalised = torch.zeros_like(mask)
    penalised[chosen] = True
    distance = (at_least_float32(logprobs) - at_least_float32(old_logprobs)).abs()
    return torch.where(penalised, loss + coefficient * distance, loss)
