"""Kernels for the card of fake_cuda.c: each operator of ATen that has one for CUDA computes on the host.

Memory of that card is memory of the host, so an operator's tensors are given to its CPU kernel as they are, and a new
result is put into memory that CUDA's allocator has given. Everything above the kernels is torch's own for CUDA:
dispatch, autograd, the allocator and its counts, streams, the choice of an attention. What torch has for CUDA only
(attention, products with a wide result) is written out here.

What no operator of ATen starts computes nothing: code that Triton or Inductor made, vLLM's own kernels, the replay of a
CUDA graph.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
NATIVE = (
    # These allocate, or ask about memory and settings.
    "empty", "empty_strided", "resize_", "set_", "_pin_memory", "is_pinned", "record_stream", "_fused_sdp_choice",
    "_local_scalar_dense", "is_set_to", "_cudnn_init_dropout_state", "_has_compatible_shallow_copy_type",
)  # fmt: skip
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
"""That cuBLAS computes on a card."""
GENERATORS: dict[torch.Generator, torch.Generator] = {}


def on_host(tensor: Tensor) -> Tensor:
    """The same memory as a tensor of the CPU."""
    if tensor.device.type != "cuda":
        return tensor
    storage = tensor.untyped_storage()
    memory = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), torch.device("cpu"), storage.nbytes())
    return torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
        memory, tensor.storage_offset(), tensor.shape, tensor.stride()
    )


def on_card(tensor: Tensor) -> Tensor:
    """A copy in memory of the card."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    on_host(made).copy_(tensor)
    return made


def kernel(operator: Any) -> Callable[..., Any]:
    """The CPU's kernel of the operator, for tensors of the card."""
    outs = {argument.name for argument in operator._schema.arguments if argument.is_out}
    is_product = operator._schema.name.removeprefix("aten::") in PRODUCTS

    def run(*args: Any, **kwargs: Any) -> Any:
        given: dict[int, Tensor] = {}
        resized: list[tuple[Tensor, Tensor]] = []

        def host(value: Any, is_out: bool = False) -> Any:
            if isinstance(value, Tensor):
                if value.device.type != "cuda":
                    return value
                if is_out and not value.numel():  # it grows to what is computed
                    of = torch.empty(0, dtype=value.dtype, device="cpu")
                    resized.append((value, of))
                else:
                    of = on_host(value)
                given[id(of)] = value
                return of
            if isinstance(value, (list, tuple)):
                return type(value)(host(v) for v in value)
            if isinstance(value, torch.Generator):
                if value.device.type != "cuda":  # as CUDA's kernels say it
                    raise RuntimeError(f"Expected a 'cuda' device type for generator but found '{value.device}'")
                return GENERATORS.setdefault(value, torch.Generator("cpu").manual_seed(value.initial_seed()))
            if isinstance(value, torch.device) and value.type == "cuda":
                return torch.device("cpu")
            return value

        def card(value: Any) -> Any:
            if isinstance(value, Tensor):
                return given[id(value)] if id(value) in given else on_card(value)
            if isinstance(value, (list, tuple)):
                return type(value)(card(v) for v in value)
            return value

        if is_product:  # its workspace is allocated, and kept by a graph that is being captured
            torch.cuda.current_blas_handle()
        moved = [host(value) for value in args], {name: host(value, name in outs) for name, value in kwargs.items()}
        found = operator(*moved[0], **moved[1])
        for value, of in resized:
            value.resize_(of.shape)
            on_host(value).copy_(of)
        return card(found)

    return run


# What torch has for CUDA only


def _probabilities(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float) -> Tensor:
    """[..., heads, queries, keys], in float32."""
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool, device="cpu").tril(), -math.inf)
    return (scores if bias is None else scores + bias).softmax(-1)


def _grouped(q: Tensor, k: Tensor) -> Tensor:
    """Keys or values [..., heads, tokens, width] as often as there are heads of queries."""
    return k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)


def _attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return (_probabilities(q, _grouped(q, k), bias, causal, scale) @ _grouped(q, v).float()).to(q.dtype)


def _attention_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    scale, keys, values, grad = (
        q.shape[-1] ** -0.5 if scale is None else scale,
        _grouped(q, k),
        _grouped(q, v),
        grad.float(),
    )
    p = _probabilities(q, keys, bias, causal, scale)
    dp = grad @ values.float().transpose(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
    of_heads = ds.transpose(-1, -2) @ q.float(), p.transpose(-1, -2) @ grad
    dk, dv = (x.unflatten(-3, (k.shape[-3], -1)).sum(-3) for x in of_heads)
    return (ds @ keys.float()).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _lse(q: Tensor) -> Tensor:
    return torch.zeros(q.shape[:-1], dtype=torch.float32, device=q.device)


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    seed = torch.zeros(2, dtype=torch.uint64, device="cpu")
    return (
        _attention(q, k, v, None, is_causal, scale),
        _lse(q),
        None,
        None,
        q.shape[2],
        k.shape[2],
        seed,
        seed,
        q.new_empty(0),
    )


def flash_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_q: Any,
    cu_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    seed: Any,
    offset: Any,
    *,
    scale: float | None = None,
) -> Any:
    return _attention_gradients(grad, q, k, v, None, is_causal, scale)


def efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    seed = torch.zeros((), dtype=torch.int64, device="cpu")
    return _attention(q, k, v, attn_bias, is_causal, scale), _lse(q), seed, seed


def efficient_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    seed: Any,
    offset: Any,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    return *_attention_gradients(grad, q, k, v, attn_bias, is_causal, scale), None


def _sequences(
    q: Tensor, k: Tensor, cu_q: Tensor, cu_k: Tensor, causal: bool, left: int | None
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Queries, keys and mask of each sequence; its last query is at its last key."""
    ends = list(zip(cu_q.tolist(), cu_k.tolist(), strict=True))
    for (a, c), (b, d) in itertools.pairwise(ends):
        distance = torch.arange(b - a, device="cpu")[:, None] + (d - c) - (b - a) - torch.arange(d - c, device="cpu")
        unseen = (distance < 0) if causal else torch.zeros_like(distance, dtype=torch.bool)
        if left is not None and left >= 0:
            unseen |= distance > left
        yield slice(a, b), slice(c, d), torch.zeros(unseen.shape, device="cpu").masked_fill(unseen, -math.inf)


def packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    **more: Any,
) -> Any:
    out = torch.empty_like(q)
    for own, seen, bias in _sequences(
        q, k, cum_seq_q, cum_seq_k, is_causal or window_size_right == 0, window_size_left
    ):
        heads = (x.transpose(0, 1) for x in (q[own], k[seen], v[seen]))
        out[own] = _attention(*heads, bias, False, scale).transpose(0, 1)
    seed = torch.zeros(2, dtype=torch.uint64, device="cpu")
    return out, q.new_zeros(q.shape[1], q.shape[0], dtype=torch.float32), seed, seed, q.new_empty(0)


def packed_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    seed: Any,
    offset: Any,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> Any:
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    for own, seen, bias in _sequences(
        q, k, cum_seq_q, cum_seq_k, is_causal or window_size_right == 0, window_size_left
    ):
        heads = (x.transpose(0, 1) for x in (grad[own], q[own], k[seen], v[seen]))
        found = _attention_gradients(*heads, bias, False, scale)
        for total, place, part in zip((dq, dk, dv), (own, seen, seen), found, strict=True):
            total[place] += part.transpose(0, 1)  # several sequences see the keys of a shared prompt
    return dq, dk, dv


def wide_mm(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
    return a.to(out_dtype) @ b.to(out_dtype)


def wide_addmm(c: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return torch.addmm(c.to(out_dtype), a.to(out_dtype), b.to(out_dtype), beta=beta, alpha=alpha)


def wide_out(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, out, **kwargs: out.copy_(function(*args, **kwargs))


ONLY_CUDA: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention": flash,
    "_scaled_dot_product_flash_attention_backward": flash_backward,
    "_scaled_dot_product_efficient_attention": efficient,
    "_scaled_dot_product_efficient_attention_backward": efficient_backward,
    "_flash_attention_forward": packed,
    "_flash_attention_backward": packed_backward,
    "mm.dtype": wide_mm,
    "bmm.dtype": wide_mm,
    "addmm.dtype": wide_addmm,
    "baddbmm.dtype": wide_addmm,
    "mm.dtype_out": wide_out(wide_mm),
    "bmm.dtype_out": wide_out(wide_mm),
    "addmm.dtype_out": wide_out(wide_addmm),
    "baddbmm.dtype_out": wide_out(wide_addmm),
}


class Written:
    """An operator that is written out here, with the operator's schema for `kernel`."""

    def __init__(self, operator: Any, function: Callable[..., Any]) -> None:
        self._schema, self._function = operator._schema, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def is_view(operator: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in operator._schema.returns)


LIBRARY = torch.library.Library("aten", "IMPL")


def install() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of each kernel that is replaced
        for full in torch._C._dispatch_get_all_op_names():
            namespace, _, name = full.partition("::")
            plain, _, overload = name.partition(".")
            if namespace != "aten" or plain in NATIVE:
                continue
            has = [torch._C._dispatch_has_kernel_for_dispatch_key(full, key) for key in ("CUDA", "CPU")]
            if not has[0] and name != "copy_":
                continue
            operator = getattr(getattr(aten, plain), overload or "default")
            if is_view(operator):
                continue
            if name in ONLY_CUDA:
                operator = Written(operator, ONLY_CUDA[name])
            elif plain.startswith("_cudnn") or "cudnn" in plain:
                continue
            LIBRARY.impl(name, kernel(operator), "CUDA")
