"""The exact KL divergence of the policy from the reference, over the whole vocabulary, at each response token."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from dapo_lit.objective.losses import full_kl
from dapo_lit.policy.attention import Layout, hidden_states
from dapo_lit.policy.head import Head, chunk_rows


def token_full_kl(
    policy: PreTrainedModel,
    input_ids: Tensor,
    packed: Layout,
    rows: Tensor,
    *,
    ref_hidden: Tensor,
    ref_head: Head | None,
    temperature: float,
) -> Tensor:
    """[n] KL(policy || reference) of the next-token distributions (temperature applied), in nats.

    Both models run in every update, because the reference's [N, V] distributions are too large to keep. Logits exist
    for a chunk of tokens at a time and are recomputed in backward.

    Args:
        policy: with gradient.
        input_ids: [T] packed tokens.
        packed: their layout.
        rows: [n] the packed token whose hidden state predicts each response token.
        ref_hidden: [n, hidden] the reference's hidden states of these rows.
        ref_head: the reference's head; None: the policy's head, which is not trained.
    """
    hidden = hidden_states(policy, input_ids, packed, rows)
    head = Head.of(policy)
    ref_head = head.detach() if ref_head is None else ref_head
    size = max(1, chunk_rows(len(head.weight), hidden.device.type) // 2)
    parts = [
        checkpoint(_chunk, h, head, r, ref_head, temperature, use_reentrant=False)
        for h, r in zip(hidden.split(size), ref_hidden.split(size), strict=True)
    ]
    return torch.cat(parts)


def _chunk(hidden: Tensor, head: Head, ref_hidden: Tensor, ref_head: Head, temperature: float) -> Tensor:
    log_policy = (head.logits(hidden) / temperature).log_softmax(-1)
    log_reference = (ref_head.logits(ref_hidden) / temperature).log_softmax(-1)
    return full_kl(log_policy, log_reference)
