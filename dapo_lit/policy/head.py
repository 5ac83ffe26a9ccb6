"""Log-probs and entropy of the response tokens from the policy's hidden states.

Only the positions that predict a response token go through the language-model head, in chunks, so that the
[tokens, vocabulary] tensor exists for one chunk at a time; its backward pass computes the chunk again.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from dapo_lit.policy.attention import Layout, packed_hidden

CHUNK_ELEMENTS = 1 << 24
"""Logits held at once: 64 MB in fp32."""


def token_logprobs(
    model: PreTrainedModel,
    input_ids: Tensor,
    packed: Layout,
    rows: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Scores `targets` under the sampling distribution (temperature applied), in fp32.

    Args:
        model: a causal language model of transformers.
        input_ids: [T] packed tokens.
        packed: their layout.
        rows: [n] the packed token whose hidden state predicts each target.
        targets: [n].

    Returns:
        Log-probs [n] in nats, with gradient; entropies [n] over the full vocabulary, with `entropy_gradient` too.
    """
    hidden = packed_hidden(model, input_ids, packed)[rows]
    head = model.get_output_embeddings()
    size = max(1, CHUNK_ELEMENTS // head.weight.shape[0])
    if len(hidden) <= size:
        return _score(hidden, head.weight, targets, temperature, entropy_gradient)
    parts = [
        checkpoint(_score, h, head.weight, t, temperature, entropy_gradient, use_reentrant=False)
        for h, t in zip(hidden.split(size), targets.split(size), strict=True)
    ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _score(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    logits = (hidden @ weight.t()).float() / temperature
    # log_softmax subtracts the largest logit first. The logits against their logsumexp, two large numbers, would leave
    # the entropy wrong by 4e-4 nats where logits reach 100.
    log_distribution = logits.log_softmax(-1)
    logprobs = log_distribution.gather(-1, targets[:, None]).squeeze(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(log_distribution.exp() * log_distribution).sum(-1)
    return logprobs, entropy
