"""Inverse-CDF sampling: logits and one uniform a row to a token and its log-probability.

One uniform a row instead of one a vocabulary entry (Gumbel-max) is what makes counter-based noise cheap. Tokens lie
along the CDF in vocabulary order, not by probability: a rounding difference between two batches then moves a boundary
by as much, where it could swap two near-ties of a sorted order.
"""

import torch
from torch import Tensor

from dapo_lit.engines.protocol import Sampling

_FIRST_CANDIDATES = 64


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draws one token a row.

    logits: [B, V] float32. uniforms: [B] float64 in (0, 1).
    Returns tokens [B] int64 and log-probs [B] float32 (nats) under the distribution drawn from: temperature first, then
    top-p, renormalised. Temperature 0 is greedy (the lowest id wins a tie): that distribution has one
    token, so its log-prob is 0. A row with a NaN gives a NaN log-prob.
    """
    if sampling.temperature == 0:
        highest, tokens = logits.max(dim=-1)
        return tokens, highest - highest  # 0, or NaN where the logits are
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if sampling.top_p == 1:
        return _inverse_cdf(torch.log_softmax(logits, dim=-1), uniforms)
    candidates, logprobs = _nucleus(logits, sampling.top_p)
    chosen, logprob = _inverse_cdf(logprobs, uniforms)
    return candidates.gather(-1, chosen[:, None]).squeeze(-1), logprob


def _inverse_cdf(logprobs: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """logprobs [B, V] -> index [B] of the first entry whose CDF exceeds the uniform, and its log-prob [B]."""
    cdf = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    # Strictly above (right=True): an entry of probability 0 leaves the CDF flat and is never the first. Scaling by the
    # total instead of 1 keeps the last uniforms inside, whatever the rounding of the sum.
    thresholds = uniforms[:, None] * cdf[:, -1:]
    tokens = torch.searchsorted(cdf, thresholds, right=True).clamp_(max=logprobs.shape[-1] - 1)
    return tokens.squeeze(-1), logprobs.gather(-1, tokens).squeeze(-1)


def _nucleus(logits: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The fewest tokens with this probability, in vocabulary order.

    Returns ids [B, C] and their renormalised log-probs [B, C], -inf where a row keeps fewer than C.
    """
    vocab = logits.shape[-1]
    # The nucleus is small as a rule: look at the highest few first, at more only if some row needs them.
    count, total = min(_FIRST_CANDIDATES, vocab), logits.logsumexp(-1, keepdim=True)
    while True:
        values, ids = logits.topk(count, dim=-1)
        probs = (values - total).exp().double()
        mass_before = probs.cumsum(-1) - probs
        if count == vocab or bool((mass_before[:, -1] + probs[:, -1] >= top_p).all()):
            break
        count = min(8 * count, vocab)
    outside = mass_before >= top_p
    outside[:, 0] = False
    ids, order = ids.sort(dim=-1)
    return ids, torch.log_softmax(values.masked_fill(outside, -torch.inf).gather(-1, order), dim=-1)
