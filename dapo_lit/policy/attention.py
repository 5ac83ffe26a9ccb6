"""Causal attention over packed sequences: all tokens in one row, no padding, no mask of tokens x tokens.

Registered with transformers, so that every model whose attention goes through its interface computes it. On a GPU in
half precision it is one variable-length flash kernel. Elsewhere sequences of similar length are laid side by side for
the attention alone (fewer calls than one a sequence, a little padding), while everything else in the model, which
treats each token by itself, sees the packed row.

A forward pass without a layout is that of transformers' `sdpa`, masks included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "dapo_packed"
SIMILAR = 1.25
"""Sequences share a batch of the attention while the longest is at most this times the shortest."""


@dataclass(frozen=True)
class Bucket:
    """Sequences of similar length."""

    num_sequences: int
    width: int
    """Tokens of the longest."""


@dataclass(frozen=True)
class Layout:
    """Where T packed tokens belong. Tensors lie on the device of the model."""

    positions: Tensor
    """[1, T] of each token in its sequence."""
    gather: Tensor
    """[R] packed token of each place in the buckets, bucket after bucket; pads repeat a sequence's last token."""
    restore: Tensor
    """[T] place in the buckets of each packed token."""
    buckets: tuple[Bucket, ...]
    cumulative: Tensor
    """[number of sequences + 1] int32: first token of each sequence, and T."""
    longest: int


def layout(lengths: Sequence[int], device: torch.device | str = "cpu") -> Layout:
    """The layout of sequences that follow each other.

    >>> made = layout([2, 3])
    >>> made.positions.tolist()
    [[0, 1, 0, 1, 2]]
    """
    sizes = torch.tensor(lengths)
    ends = sizes.cumsum(0)
    starts, total = ends - sizes, int(ends[-1])
    gather, buckets, restore, offset = [], [], torch.empty(total, dtype=torch.int64), 0
    for members in _similar(lengths):
        chosen, width = torch.tensor(members), lengths[members[0]]
        column = torch.arange(width)
        within = column < sizes[chosen, None]
        tokens = starts[chosen, None] + torch.minimum(column, sizes[chosen, None] - 1)
        restore[tokens[within]] = offset + within.flatten().nonzero().flatten()
        gather.append(tokens.flatten())
        buckets.append(Bucket(len(members), width))
        offset += tokens.numel()
    positions = torch.arange(total) - torch.repeat_interleave(starts, sizes)
    cumulative = torch.cat([ends.new_zeros(1), ends]).int()
    return Layout(
        positions=positions[None].to(device),
        gather=torch.cat(gather).to(device),
        restore=restore.to(device),
        buckets=tuple(buckets),
        cumulative=cumulative.to(device),
        longest=max(lengths),
    )


def _similar(lengths: Sequence[int]) -> list[list[int]]:
    """Indices in batches of similar length, longest first."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not batches or lengths[batches[-1][0]] > SIMILAR * lengths[index] + 1:
            batches.append([])
        batches[-1].append(index)
    return batches


def packed_hidden(model: PreTrainedModel, input_ids: Tensor, packed: Layout) -> Tensor:
    """Last hidden states [T, hidden] of packed tokens.

    Args:
        model: a causal language model of transformers; its attention is set to this one.
        input_ids: [T] on the model's device.
        packed: the layout of those tokens.
    """
    if model.config._attn_implementation != NAME:
        model.set_attn_implementation(NAME)
    output = model.base_model(
        input_ids=input_ids[None],
        position_ids=packed.positions,
        # With four dimensions transformers passes it on as it is, instead of building a mask of T x T.
        attention_mask=input_ids.new_empty(0, 0, 0, 0),
        use_cache=False,
        packed_layout=packed,
    )
    return output.last_hidden_state[0]


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_layout: Layout | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls. query [1, heads, T, D], key and value [1, key heads, T, D] -> [1, T, heads, D].

    Dropout is not applied: a policy's log-probs must not depend on it.
    """
    if packed_layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    rows = [x[0].transpose(0, 1) for x in (query, key, value)]
    if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16):
        out = _variable_length(rows[0], rows[1], rows[2], packed_layout, scaling, sliding_window)
    else:
        out = _side_by_side(rows[0], rows[1], rows[2], packed_layout, scaling, sliding_window)
    return out[None], None


def _variable_length(
    query: Tensor, key: Tensor, value: Tensor, packed: Layout, scaling: float | None, window: int | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # imports kernels that a CPU build need not have

    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:  # torch 2.11 has no enable_gqa
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    cumulative, longest = packed.cumulative, packed.longest
    left = -1 if window is None else window - 1
    return varlen_attn(
        query, key, value, cumulative, cumulative, longest, longest, scale=scaling, window_size=(left, 0)
    )


def _side_by_side(
    query: Tensor, key: Tensor, value: Tensor, packed: Layout, scaling: float | None, window: int | None
) -> Tensor:
    """[T, heads, D] -> the same: one attention a bucket."""
    gathered = [x.index_select(0, packed.gather) for x in (query, key, value)]
    sizes = [bucket.num_sequences * bucket.width for bucket in packed.buckets]
    grouped = query.shape[1] != key.shape[1]
    outputs = []
    for bucket, *parts in zip(packed.buckets, *(x.split(sizes) for x in gathered), strict=True):
        q, k, v = (x.view(bucket.num_sequences, bucket.width, *x.shape[1:]).transpose(1, 2) for x in parts)
        mask = None
        if window is not None and window < bucket.width:
            place = torch.arange(bucket.width, device=query.device)
            distance = place[:, None] - place
            mask = (distance >= 0) & (distance < window)
        # The pads stand at the end, where no token of the sequence sees them.
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
        )
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, packed.restore)


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
