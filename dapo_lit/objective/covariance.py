"""Losses that choose among the tokens of a mini-batch: Clip-Cov, KL-Cov (arXiv 2505.22617), and forking tokens.

The change of entropy in an update is minus the covariance of log-probability and advantage over the tokens (section 3
of 2505.22617). Clip-Cov and KL-Cov look at each token's addend of it,

    Cov_t = (log pi(y_t) - mean log pi) (A_t - mean A),

and act on few tokens where it is large. Means are over the tokens of the mini-batch that carry loss. Each loss is a
`PolicyLoss` (tokens.py) of a whole mini-batch.
"""

from dataclasses import replace
from math import inf

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dapo_lit.objective.losses import cispo_loss, clipped_policy_loss, gmpo_loss, gspo_loss, reinforce_loss
from dapo_lit.objective.needs import Needs
from dapo_lit.objective.tokens import (
    Bounds,
    PolicyLoss,
    Statistics,
    Tokens,
    at_least_float32,
    clipped_tokens,
    importance_ratio,
    token_statistics,
)


def token_covariance(tokens: Tokens) -> Float[Tensor, "n"]:
    """Cov_t of the tokens that carry loss, 0 elsewhere; detached."""
    assert tokens.mask is not None
    mask = tokens.mask
    logprobs, advantages = at_least_float32(tokens.logprobs).detach(), at_least_float32(tokens.advantages).detach()
    if not mask.any():
        return torch.zeros_like(logprobs)
    deviation = (logprobs - logprobs[mask].mean()) * (advantages - advantages[mask].mean())
    return torch.where(mask, deviation, 0.0)


@Needs(reads=("clip_low", "clip_high"), options={"frac": (0, 1)}, whole_minibatch=True)
def clip_cov_loss(
    tokens: Tokens, bounds: Bounds, *, frac: float = 2e-4, cov_low: float = 1.0, cov_high: float = 5.0
) -> tuple[Float[Tensor, "n"], Statistics]:
    """Clip-Cov (section 4.2): a random few of the tokens with `cov_low < Cov_t < cov_high` carry no loss.

    At most the share `frac` of the tokens is held back, and at least one token; the paper has 2e-4, 1 and 5. PPO's clip
    stays in place, as in the authors' code, and tokens that it cuts are not among the candidates. The dual clip does
    not.
    """
    loss, _ = clipped_policy_loss(tokens, Bounds(bounds.low, bounds.high))
    assert tokens.mask is not None
    ratio = importance_ratio(tokens.logprobs, tokens.old_logprobs).detach()
    low, high, _ = clipped_tokens(ratio, at_least_float32(tokens.advantages), bounds)
    covariance = token_covariance(tokens)
    candidates = (tokens.mask & ~(low | high) & (covariance > cov_low) & (covariance < cov_high)).nonzero().flatten()
    count = min(len(candidates), max(1, int(frac * int(tokens.mask.sum()))))
    order = torch.randperm(len(candidates), generator=tokens.generator, device="cpu").to(candidates.device)
    held_back = torch.zeros_like(tokens.mask)
    held_back[candidates[order[:count]]] = True
    return torch.where(held_back, 0.0, loss), token_statistics(tokens, bounds)


@Needs(options={"frac": (0, 1), "coefficient": (0, inf)}, whole_minibatch=True)
def kl_cov_loss(
    tokens: Tokens, bounds: Bounds, *, frac: float = 2e-4, coefficient: float = 1.0
) -> tuple[Float[Tensor, "n"], Statistics]:
    """KL-Cov (section 4.2): `-r A`, and at the tokens of largest Cov_t a penalty on leaving the old policy.

    The ratio is not clipped. The penalty is `coefficient * |log r|`, the authors' estimate of the KL at one token; the
    paper's coefficient is 1. `frac` is the share of penalised tokens, at least one (the paper: 2e-3 at 7B, 2e-4 at
    32B).
    """
    loss = -at_least_float32(tokens.advantages) * importance_ratio(tokens.logprobs, tokens.old_logprobs)
    assert tokens.mask is not None
    if tokens.mask.any():
        covariance = token_covariance(tokens).masked_fill(~tokens.mask, -torch.inf)
        penalised = torch.zeros_like(tokens.mask)
        penalised[covariance.topk(max(1, int(frac * int(tokens.mask.sum())))).indices] = True
        distance = (at_least_float32(tokens.logprobs) - at_least_float32(tokens.old_logprobs)).abs()
        loss = torch.where(penalised, loss + coefficient * distance, loss)
    return loss, token_statistics(tokens, bounds)


LOSSES = {
    "clip": clipped_policy_loss,
    "reinforce": reinforce_loss,
    "cispo": cispo_loss,
    "gspo": gspo_loss,
    "gmpo": gmpo_loss,
    "clip_cov": clip_cov_loss,
    "kl_cov": kl_cov_loss,
}
"""Those of losses.py and these, by the value of `algorithm.loss`."""


def top_entropy(loss: PolicyLoss, *, frac: float) -> PolicyLoss:
    """Forking tokens (arXiv 2506.01939, section 5): `loss`, 0 but at the tokens of the highest entropy.

    No other token has a gradient, also where a loss of whole completions is the same number at all tokens.
    """

    def restricted(tokens: Tokens, bounds: Bounds) -> tuple[Float[Tensor, "n"], Statistics]:
        assert tokens.entropy is not None
        assert tokens.mask is not None
        kept = top_entropy_mask(tokens.entropy, tokens.mask, frac=frac)
        logprobs = torch.where(kept, tokens.logprobs, tokens.logprobs.detach())
        losses, statistics = loss(replace(tokens, logprobs=logprobs), bounds)
        # The value of a token that is left out is 0, which changes no gradient.
        return losses - torch.where(kept, 0.0, losses).detach(), statistics

    return restricted


TIED = 3e-6
"""Nats by which float32 can tell apart entropies that are the same: about ten times the last bit of one."""


def top_entropy_mask(entropy: Float[Tensor, "n"], mask: Bool[Tensor, "n"], *, frac: float) -> Bool[Tensor, "n"]:
    """True at the share `frac` of the tokens in `mask` with the highest entropy, by the mini-batch's threshold.

    The denominator stays the number of all tokens, as in the paper's equation; its main result has a share of 0.2. All
    tokens at the threshold are kept, so ties can make them more than `frac`: the first tokens of a prompt's responses
    have one entropy, and its last bits differ between micro-batches (`TIED`).

    >>> top_entropy_mask(torch.tensor([0.1, 2.0, 0.0, 1.0, 3.0]), torch.tensor([True] * 4 + [False]), frac=0.5)
    tensor([False,  True, False,  True, False])
    """
    if not mask.any():
        return mask
    candidates = entropy[mask].detach()
    count = max(1, round(frac * len(candidates)))
    return mask & (entropy.detach() >= torch.topk(candidates, count).values[-1] - TIED)
