"""Causal attention over packed sequences: all tokens in one row, no padding, no mask of tokens x tokens.

Responses to one prompt may share its tokens, and the tokens of their own that they begin with: what is shared is in the
row once and receives the gradients of all its responses (prefix grouping, arXiv 2506.05433).

The function is registered with transformers, so every model that uses its attention interface can run it. On a GPU in
half precision it is one variable-length flash kernel. Elsewhere, sequences of similar length are batched (with a little
padding) for the attention only; the rest of the model works on single tokens and sees the packed row.

Without a layout, a forward pass is transformers' `sdpa`, masks included.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from dapo_lit.kernels import exclude_cudnn_attention, is_on_gpu

NAME = "dapo_packed"
SIMILAR = 1.25
"""The longest sequence of a bucket is at most this many times as long as the shortest."""
BRANCH_BELOW = 0.75
"""A segment is a branch where its own tokens are at most this share of its sequence: above, a causal pass over the
whole sequence is as fast as one with a mask."""
BRANCH_MASK = 1 << 22
"""Most places of a branch's mask, queries x keys."""
BRANCH_PADDING = 1 << 12
"""Most places of padding in a batch of branches: a few more take less time than one more call."""


@dataclass(frozen=True)
class Bucket:
    """Sequences of similar length, padded to the longest."""

    num_sequences: int
    width: int


@dataclass(eq=False)
class Branches:
    """Segments of similar lengths: their own tokens are the queries, their whole sequences the keys."""

    num_segments: int
    queries: int
    """Own tokens of the longest; padding repeats a segment's last one."""
    keys: int
    """Tokens of the longest sequence; padding repeats its last one."""
    places: Int64[Tensor, "segments queries"]
    """Of each query in its sequence."""

    def seen(self, window: int | None) -> Bool[Tensor, "segments 1 queries keys"]:
        """True where a query sees a key; padded keys are behind the last query."""
        distance = self.places[:, :, None] - torch.arange(self.keys, device=self.places.device)
        seen = distance >= 0
        return (seen if window is None else seen & (distance < window))[:, None]


# Not frozen: torch 2.11 rebuilds a frozen dataclass field by field where compiled code hands it to the attention, and
# compiles every layer again for each number of buckets.
@dataclass(eq=False)
class Layout:
    """The sequence that each of T packed tokens belongs to. Tensors are on the model's device.

    The row is a concatenation of segments. A segment is a whole sequence, a shared prompt, or tokens that continue the
    first tokens of an earlier segment's sequence (a response that continues a shared prompt).
    """

    positions: Int64[Tensor, "1 T"]
    """Place of each token in its sequence."""
    gather: Int64[Tensor, "places"]
    """Index of the packed token at each place of the buckets; padding repeats a sequence's last token."""
    restore: Int64[Tensor, "T"]
    """Place of each packed token in the buckets; shared tokens are taken from one of their sequences."""
    buckets: tuple[Bucket, ...]
    branches: tuple[Branches, ...]
    """Segments whose sequences are in no bucket; `restore` has their queries after the places of the buckets."""
    branch_queries: Int64[Tensor, "branch_places"]
    """Index of the packed token at each query of the branches."""
    branch_keys: Int64[Tensor, "branch_keys"]
    cumulative_queries: Int32[Tensor, "segments_plus_1"]
    """Index of each segment's first token, and T."""
    longest_query: int
    keys: Int64[Tensor, "keys"] | None
    """Indices of the tokens that each segment attends to (before it and its own), concatenated. None: all T."""
    cumulative_keys: Int32[Tensor, "segments_plus_1"]
    longest_key: int


def layout(
    lengths: Sequence[int],
    prompts: Sequence[int] | None = None,
    continued: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
    *,
    branches: bool = False,
) -> Layout:
    """The layout of consecutive segments.

    lengths: tokens of each segment, at least 1.
    prompts: for each segment the earlier segment whose sequence it continues, or -1. None: all -1.
    continued: for each segment how many tokens of that sequence precede it. None: all of them.
    branches: where attention goes over buckets, queries of shared tokens are computed once, and not once for each
        sequence that they are in.

    >>> layout([2, 3]).positions.tolist()
    [[0, 1, 0, 1, 2]]
    >>> layout([2, 3, 1], prompts=[-1, 0, 0]).positions.tolist()  # two responses to one prompt
    [[0, 1, 2, 3, 4, 2]]
    >>> layout([4, 1], prompts=[-1, 0], continued=[0, 3]).keys.tolist()  # they differ in the last token
    [0, 1, 2, 3, 0, 1, 2, 4]
    """
    # NumPy throughout, so that nothing waits for the device.
    # Segment lengths are on the host already; asking the device for them would stall it in every micro-batch.
    own = np.array(lengths)
    total = int(own.sum())
    sequences = paths(lengths, prompts, continued)
    whole = np.array([len(sequence) for sequence in sequences])
    every, first = np.concatenate(sequences), whole.cumsum() - whole
    before = whole - own
    is_branch = np.zeros(len(own), np.bool_)
    if branches:
        is_branch = (own <= BRANCH_BELOW * whole) & (own * whole <= BRANCH_MASK)
    # A sequence that another one continues to its end is computed with that one; a branch computes its own tokens only.
    is_sequence = ~is_branch
    if prompts is not None:
        parents = np.array(prompts)
        is_sequence[parents[(parents >= 0) & (before == whole[parents]) & ~is_branch]] = False

    gather, buckets, restore, offset = [], [], np.empty(total, np.int64), 0
    # By length, because a bucket is padded to its longest: at 1.25 at most a fifth of it is padding.
    for segments in _similar(whole, is_sequence.nonzero()[0]):
        width = int(whole[segments[0]])
        # [segments, width] indices of their sequences' tokens, the last one repeated
        places = every[first[segments, None] + np.minimum(np.arange(width), whole[segments, None] - 1)]
        within = np.arange(width) < whole[segments, None]
        # Shared tokens occur in several sequences; the last one written is read. Their attention is the same in each.
        restore[places[within]] = offset + within.ravel().nonzero()[0]
        gather.append(places.ravel())
        buckets.append(Bucket(len(segments), width))
        offset += places.size

    ends, found = own.cumsum(), []
    branch_queries, branch_keys = [np.empty(0, np.int64)], [np.empty(0, np.int64)]  # there may be no branch
    for segments in _alike(own, whole, is_branch.nonzero()[0]):
        queries, keys = int(own[segments].max()), int(whole[segments].max())
        # [segments, queries] of a segment's own tokens, the last one repeated
        place = np.minimum(np.arange(queries), own[segments, None] - 1)
        tokens = ends[segments, None] - own[segments, None] + place
        restore[tokens] = offset + np.arange(tokens.size).reshape(tokens.shape) - (np.arange(queries) - place)
        branch_queries.append(tokens.ravel())
        branch_keys.append(
            every[first[segments, None] + np.minimum(np.arange(keys), whole[segments, None] - 1)].ravel()
        )
        found.append((queries, keys, before[segments, None] + place))
        offset += tokens.size

    def placed(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(device, non_blocking=True)

    return Layout(
        # Positions start at 0 in each sequence: rotary embeddings must not see where the row puts it.
        positions=placed(np.arange(total) + np.repeat(before - (own.cumsum() - own), own))[None],
        gather=placed(np.concatenate(gather)),
        restore=placed(restore),
        buckets=tuple(buckets),
        branches=tuple(Branches(len(places), q, k, placed(places)) for q, k, places in found),
        branch_queries=placed(np.concatenate(branch_queries)),
        branch_keys=placed(np.concatenate(branch_keys)),
        cumulative_queries=placed(_cumulative(own)),
        # The kernel wants them as numbers, so they must be known without asking the device.
        longest_query=int(own.max()),
        keys=None if prompts is None else placed(every),
        cumulative_keys=placed(_cumulative(whole)),
        longest_key=int(whole.max()),
    )


def paths(
    lengths: Sequence[int], prompts: Sequence[int] | None = None, continued: Sequence[int] | None = None
) -> list[np.ndarray]:
    """For each segment the packed tokens of its sequence: those that it continues and its own; see `layout`."""
    found: list[np.ndarray] = []
    end = 0
    for segment, length in enumerate(lengths):
        own, end = np.arange(end, end + length), end + length
        parent = -1 if prompts is None else prompts[segment]
        if parent >= 0:
            own = np.concatenate([found[parent][: None if continued is None else continued[segment]], own])
        found.append(own)
    return found


def _cumulative(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], lengths.cumsum()]).astype(np.int32)


def _similar(lengths: np.ndarray, chosen: np.ndarray) -> list[np.ndarray]:
    """The `chosen` indices in batches of similar length, longest first."""
    order = chosen[np.argsort(-lengths[chosen], kind="stable")]
    batches, start, sizes = [], 0, lengths[order].tolist()
    for place, size in enumerate(sizes):
        if sizes[start] > SIMILAR * size + 1:
            batches.append(order[start:place])
            start = place
    return [*batches, order[start:]]


def _alike(own: np.ndarray, whole: np.ndarray, chosen: np.ndarray) -> list[np.ndarray]:
    """The `chosen` indices in batches, each as large as BRANCH_PADDING allows; those with most own tokens first."""
    order = chosen[np.lexsort((-whole[chosen], -own[chosen]))]
    batches, start, keys, needed = [], 0, 0, 0
    for place, (queries, length) in enumerate(zip(own[order].tolist(), whole[order].tolist(), strict=True)):
        keys, needed = max(keys, length), needed + queries * length
        if (place + 1 - start) * int(own[order[start]]) * keys - needed > BRANCH_PADDING:
            batches.append(order[start:place])
            start, keys, needed = place, length, queries * length
    return [*batches, order[start:]] if len(order) else []


def packed_hidden(model: PreTrainedModel, input_ids: Int64[Tensor, "T"], packed: Layout) -> Float[Tensor, "T H"]:
    """Last hidden states of packed tokens; sets the model's attention implementation to this one."""
    if model.config._attn_implementation != NAME:
        # On first use: a model that only generates or is saved keeps the implementation of its config.
        model.set_attn_implementation(NAME)
    # Without the head, whose logits nobody reads.
    output = model.base_model(
        input_ids=input_ids[None],
        position_ids=packed.positions,
        # transformers passes a four-dimensional mask on unchanged instead of building one of T x T.
        attention_mask=input_ids.new_empty(0, 0, 0, 0),
        use_cache=False,
        packed_layout=packed,
    )
    return output.last_hidden_state[0]


def packed_attention(
    module: torch.nn.Module,
    query: Float[Tensor, "rows heads T D"],
    key: Float[Tensor, "rows key_heads T D"],
    value: Float[Tensor, "rows key_heads T D"],
    attention_mask: Tensor | None,
    *,
    packed_layout: Layout | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Float[Tensor, "rows T heads D"], None]:
    """The attention function for transformers; with a layout there is one row.

    Dropout is not applied: a policy's log-probs must not depend on it.
    """
    # A sink takes probability from every token; ignoring it would give log-probs of another model.
    if s_aux is not None:
        raise ValueError("attention sinks")
    # Without a layout (pre-training, tests) the numbers must be transformers' own.
    if packed_layout is None:
        if softcap is not None:
            return _attend(query, key, value, attention_mask, scaling, softcap).transpose(1, 2).contiguous(), None
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    # The batch has one row; the kernels want tokens first.
    rows = [x[0].transpose(0, 1) for x in (query, key, value)]
    if softcap is None and has_variable_length_kernel(query):
        out = _variable_length(rows[0], rows[1], rows[2], packed_layout, scaling, sliding_window)
    else:
        out = _bucketed(rows[0], rows[1], rows[2], packed_layout, scaling, sliding_window, softcap)
    return out[None], None


def has_variable_length_kernel(query: Tensor) -> bool:
    return is_on_gpu(query) and query.dtype in (torch.float16, torch.bfloat16)


@cache
def takes_grouped_heads() -> bool:
    """The kernel reads keys of fewer heads than queries: from torch 2.12 on; before, they are repeated, and kept so."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


def _variable_length(
    query: Tensor, key: Tensor, value: Tensor, packed: Layout, scaling: float | None, window: int | None
) -> Tensor:
    # Imports kernels that a CPU build may lack.
    from torch.nn.attention.varlen import varlen_attn

    if packed.keys is not None:
        # A shared prompt is gathered for each response: its keys are copied, its layers are computed once.
        key, value = key.index_select(0, packed.keys), value.index_select(0, packed.keys)
    options: dict[str, Any] = {}
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1 and takes_grouped_heads():
        options["enable_gqa"] = True
    elif repeats > 1:
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    # The kernel aligns the last query with the last key, so a response attends to its whole prompt.
    out = varlen_attn(
        query,
        key,
        value,
        packed.cumulative_queries,
        packed.cumulative_keys,
        packed.longest_query,
        packed.longest_key,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        **options,
    )
    assert isinstance(out, Tensor)
    return out


def _bucketed(
    query: Float[Tensor, "T heads D"],
    key: Float[Tensor, "T key_heads D"],
    value: Float[Tensor, "T key_heads D"],
    packed: Layout,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> Float[Tensor, "T heads D"]:
    """One attention call a bucket, and one for branches of similar lengths."""
    # Padding repeats a real token: finite, and hidden by the causal mask.
    gathered = [x.index_select(0, packed.gather) for x in (query, key, value)]
    sizes = [bucket.num_sequences * bucket.width for bucket in packed.buckets]
    outputs = []
    for bucket, *parts in zip(packed.buckets, *(x.split(sizes) for x in gathered), strict=True):
        q, k, v = (x.view(bucket.num_sequences, bucket.width, *x.shape[1:]).transpose(1, 2) for x in parts)
        mask = None
        if window is not None and window < bucket.width:
            place = torch.arange(bucket.width, device=query.device)
            # A sliding window is not a causal mask, so the fused path of `is_causal` cannot be used.
            distance = place[:, None] - place
            mask = (distance >= 0) & (distance < window)
        # Padding is at the end, so causal attention hides it from every token of the sequence.
        outputs.append(_attend(q, k, v, mask, scaling, softcap).transpose(1, 2).flatten(0, 1))
    if packed.branches:
        queries = query.index_select(0, packed.branch_queries).split(
            [b.num_segments * b.queries for b in packed.branches]
        )
        widths = [branch.num_segments * branch.keys for branch in packed.branches]
        keys, values = (x.index_select(0, packed.branch_keys).split(widths) for x in (key, value))
        for branch, *parts in zip(packed.branches, queries, keys, values, strict=True):
            q, k, v = (x.view(branch.num_segments, -1, *x.shape[1:]).transpose(1, 2) for x in parts)
            outputs.append(_attend(q, k, v, branch.seen(window), scaling, softcap).transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, packed.restore)


def _attend(
    query: Float[Tensor, "rows heads width D"],
    key: Float[Tensor, "rows key_heads keys D"],
    value: Float[Tensor, "rows key_heads keys D"],
    mask: Bool[Tensor, "..."] | None,
    scaling: float | None,
    softcap: float | None,
) -> Float[Tensor, "rows heads width D"]:
    """mask: True where a query sees a key; None: causal, with as many keys as queries. With a soft cap the scores
    [B, heads, W, keys] exist, because the fused kernels know no cap.
    """
    repeats = query.shape[1] // key.shape[1]
    if softcap is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=repeats > 1
        )
    key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[3] ** -0.5 if scaling is None else scaling)
    scores = softcap * torch.tanh(scores / softcap)
    if mask is None:
        # Of [W, W] and not of [B, heads, W, W]: it is broadcast.
        mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).tril()
    # A softmax in bfloat16 sums to 1 within a percent only.
    wide = torch.promote_types(query.dtype, torch.float32)
    return scores.masked_fill(~mask, float("-inf")).softmax(-1, dtype=wide).to(query.dtype) @ value


def leave_uncompiled() -> None:
    """Compiled layers call the attention as it is: it reads a layout, and would be compiled anew for each."""
    AttentionInterface.register(NAME, torch.compiler.disable(packed_attention))


exclude_cudnn_attention()  # here, so that it holds for transformers' own attention too
AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
