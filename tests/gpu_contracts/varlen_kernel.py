"""A reference kernel on the CPU for the operator behind `torch.nn.attention.varlen`, which torch has on GPUs only.

The operator's own schema, autograd and wrapper stay in use; only the arithmetic is replaced.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import varlen

import dapo_lit.policy.attention as attention

CALLS: list[str] = []
"""What the kernel computed: `forward` or `backward`, once a call."""


def _probabilities(q: Tensor, k: Tensor, scale: float | None, window: list[int] | None, causal: bool) -> Tensor:
    """[heads, queries, keys]; the last query is aligned with the last key."""
    scores = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    offset = len(k) - len(q)
    distance = torch.arange(len(q))[:, None] + offset - torch.arange(len(k))
    left, right = window or (-1, -1)
    seen = torch.ones_like(distance, dtype=torch.bool)
    if causal or right >= 0:
        seen &= distance >= 0
    if left >= 0:
        seen &= distance <= left
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def _sequences(cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int) -> Iterator[tuple[slice, slice]]:
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert int(cu_q.diff().max()) == max_q
    assert int(cu_k.diff().max()) == max_k
    for index in range(len(cu_q) - 1):
        yield slice(int(cu_q[index]), int(cu_q[index + 1])), slice(int(cu_k[index]), int(cu_k[index + 1]))


def _expanded(q: Tensor, k: Tensor) -> Tensor:
    return k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    causal, scale, window = (*rest, None, None, None)[:3]
    CALLS.append("forward")
    out = torch.empty_like(q)
    for own, seen in _sequences(cu_q, cu_k, max_q, max_k):
        p = _probabilities(q[own], _expanded(q, k[seen]), scale, window, bool(causal))
        out[own] = torch.einsum("hqk,khd->qhd", p, _expanded(q, v[seen]))
    return out, q.new_zeros(q.shape[1], q.shape[0], dtype=torch.float32), torch.zeros(2, dtype=torch.uint64)


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor,
    max_q: int, max_k: int, causal: bool, rng: Tensor, scale: float | None = None, window: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    CALLS.append("backward")
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    for own, seen in _sequences(cu_q, cu_k, max_q, max_k):
        keys, values = _expanded(q, k[seen]), _expanded(q, v[seen])
        p = _probabilities(q[own], keys, scale, window, causal)
        dp = torch.einsum("qhd,khd->hqk", grad[own], values)
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * factor
        dq[own] = torch.einsum("hqk,khd->qhd", ds, keys)
        for total, part in (
            (dk, torch.einsum("hqk,qhd->khd", ds, q[own])),
            (dv, torch.einsum("hqk,qhd->khd", p, grad[own])),
        ):
            total[seen] += part.unflatten(1, (k.shape[1], -1)).sum(2)  # over the queries' heads of a key head
    return dq, dk, dv


varlen._varlen_attn.register_kernel("cpu", _forward)
varlen._varlen_attn_backward.register_kernel("cpu", _backward)


@contextmanager
def in_use(monkeypatch: Any, has_kernel: Callable[[Tensor], bool] = lambda query: True) -> Iterator[list[str]]:
    """Attention takes the branch of a GPU; yields the list of the kernel's calls."""
    CALLS.clear()
    with monkeypatch.context() as patched:
        patched.setattr(attention, "has_variable_length_kernel", has_kernel)
        yield CALLS
