"""Log-probs and entropies of the response tokens from hidden states, without a [tokens, vocabulary] tensor.

Only the positions that predict a response token go through the language-model head, in chunks of tokens:

- `token_logprobs` returns differentiable log-probs for any loss. Its backward pass recomputes the logits: four matrix
  products of hidden states and head in all.
- `token_loss` takes a loss that is a sum over tokens. The loss of a token depends only on its own log-prob, so the
  gradient is computed in the forward pass: three products, and only the gradients are kept.

Matrix products take the dtype of the weights, or float32 with `fp32` (which copies hidden states and head). On a GPU
they return their float32 sums; elsewhere logits are rounded to the dtype of the weights first. All other arithmetic,
and the sum of the head's gradient, is float32 or wider. Autograd adds the gradient of a tied head to the embedding's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dapo_lit.objective.tokens import NOTHING, Statistics, merge
from dapo_lit.policy.attention import Layout, packed_hidden
from dapo_lit.policy.softmax import Measured, back_through_softmax, centre, measure, measured

CHUNK_ELEMENTS = 1 << 22
"""A chunk has at least this many logits: 16 MB in float32."""
CHUNK_ROWS = {"cpu": 256, "cuda": 2048}
"""A chunk has at least this many tokens, because every chunk reads the whole head three times."""

LossOfTokens = Callable[[Tensor, Tensor, slice], tuple[Tensor, Statistics]]
"""(log-probs [c], entropies [c], slice of the n tokens) -> weighted loss of each token [c], and what it measures."""


@dataclass(frozen=True)
class Head:
    """The map from hidden states to logits: x = scale (W h + b), then cap tanh(x / cap) if there is a soft cap."""

    weight: Tensor
    """[V, hidden size]."""
    bias: Tensor | None = None
    """[V]."""
    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """The head of a causal language model. A sharded one must be gathered."""
        layer, config = model.get_output_embeddings(), model.config.get_text_config()
        scale = getattr(config, "logit_scale", None) or 1.0  # Cohere
        scaling = getattr(config, "logits_scaling", None)  # Granite divides by it, HyperCLOVA X multiplies
        if scaling:
            scale = scaling if config.model_type == "hyperclovax" else 1 / scaling
        softcap = getattr(config, "final_logit_softcapping", None)  # Gemma 2
        return cls(layer.weight, getattr(layer, "bias", None), float(scale), softcap)

    def widened(self) -> Self:
        """In float32 or wider."""
        return replace(self, weight=_widened(self.weight), bias=None if self.bias is None else _widened(self.bias))

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, V] logits, float32 or wider: for few tokens, since autograd keeps all of them."""
        logits = _widened(hidden @ self.weight.t())
        if self.bias is not None:
            logits = logits + self.bias
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def chunk_rows(vocabulary: int, device: str) -> int:
    """Number of tokens whose logits exist at once on this kind of device ("cpu", "cuda").

    On a CPU, fewer rows leave the matrix products waiting for the head's weights. A GPU needs several hundred before
    its arithmetic takes as long as reading them; 2,048 rows of a vocabulary of 152k are 1.2 GB in float32.
    """
    return max(CHUNK_ELEMENTS // vocabulary, CHUNK_ROWS.get(device, CHUNK_ROWS["cuda"]))


def token_logprobs(
    model: PreTrainedModel,
    input_ids: Tensor,
    packed: Layout,
    rows: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    entropy_gradient: bool = False,
    fp32: bool = False,
    rows_per_chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probs [n] of `targets`, with gradient, and entropies [n], at the temperature of sampling.

    rows [n]: the packed token of `input_ids` [T] whose hidden state predicts each target. `entropy_gradient`: the
    entropies have a gradient too. `fp32`: the head is computed in float32 even if the weights are narrower.
    """
    hidden = packed_hidden(model, input_ids, packed)[rows]
    logprobs, entropy = scores(
        hidden, Head.of(model), targets, temperature=temperature, fp32=fp32, rows_per_chunk=rows_per_chunk
    )
    return logprobs, entropy if entropy_gradient else entropy.detach()


def scores(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    *,
    temperature: float,
    fp32: bool = False,
    rows_per_chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [n] of `targets` [n] from hidden states [n, hidden size], both with gradient."""
    if fp32:
        hidden, head = _widened(hidden), head.widened()
    logprobs, entropy = _Scores.apply(hidden, head.weight, head.bias, targets, _form(head, temperature, rows_per_chunk))
    return logprobs, entropy


def fused_loss(
    model: PreTrainedModel,
    input_ids: Tensor,
    packed: Layout,
    rows: Tensor,
    targets: Tensor,
    loss_of_tokens: LossOfTokens,
    *,
    temperature: float,
    fp32: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Statistics]:
    """`token_loss` of the hidden states at `rows` [n]; a sharded model must be gathered."""
    hidden = packed_hidden(model, input_ids, packed)[rows]
    return token_loss(hidden, Head.of(model), targets, loss_of_tokens, temperature=temperature, fp32=fp32)


def token_loss(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    loss_of_tokens: LossOfTokens,
    *,
    temperature: float,
    fp32: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Statistics]:
    """The sum of a loss over tokens, with its gradient computed in the forward pass.

    `loss_of_tokens` is called once a chunk; it must depend on the chunk's tokens only, and on no gradient of the
    entropy. Returns the loss, differentiable in `hidden` [n, hidden size] and the head; log-probs [n] and entropies
    [n], detached; what the loss measures.
    """
    if fp32:
        hidden, head = _widened(hidden), head.widened()
    return _Loss.apply(hidden, head.weight, head.bias, targets, loss_of_tokens, _form(head, temperature))


def has_wide_products(tensor: Tensor) -> bool:
    """A matrix product of this tensor can return its float32 sums without rounding them to the dtype."""
    return tensor.is_cuda and tensor.dtype in (torch.float16, torch.bfloat16)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class _Form(NamedTuple):
    """Everything about logits except the tensors, which autograd must see as arguments."""

    temperature: float
    """Divided by the head's scale."""
    cap: float | None
    """The soft cap divided by the head's scale: the bound of W h + b."""
    rows: int

    def measured(self, logits: Tensor, bias: Tensor | None, targets: Tensor) -> Measured:
        """`measured` of a chunk; overwrites the logits."""
        return measured(logits, bias, targets, self.cap, self.temperature)

    def chunks(self, tokens: int) -> list[slice]:
        return [slice(start, min(start + self.rows, tokens)) for start in range(0, tokens, self.rows)]


def _form(head: Head, temperature: float, rows: int | None = None) -> _Form:
    cap = None if head.softcap is None else head.softcap / head.scale
    rows = rows or chunk_rows(len(head.weight), head.weight.device.type)
    return _Form(temperature / head.scale, cap, rows)


def _product(hidden: Tensor, weight: Tensor) -> Tensor:
    """[c, V] W h, float32 or wider."""
    if has_wide_products(weight):
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return _widened(torch.mm(hidden, weight.t()))


class _Sums:
    """Accumulates the gradients of hidden states and head over chunks."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, needed: tuple[bool, ...]) -> None:
        wide = torch.promote_types(weight.dtype, torch.float32)
        self.hidden = torch.empty_like(hidden) if needed[0] else None
        self.weight = torch.zeros_like(weight, dtype=wide) if needed[1] else None
        self.bias = torch.zeros_like(bias, dtype=wide) if bias is not None and needed[2] else None
        self.dtype = weight.dtype

    def add(self, hidden: Tensor, weight: Tensor, chunk: slice, d_logits: Tensor, slope: Tensor | None) -> None:
        if slope is not None:
            d_logits = d_logits.mul_(slope)
        if self.bias is not None:
            self.bias += d_logits.sum(0)
        d_logits = d_logits.to(weight.dtype)
        if self.hidden is not None:
            torch.mm(d_logits, weight, out=self.hidden[chunk])
        if self.weight is None:
            return
        if self.weight.dtype == weight.dtype:
            self.weight.addmm_(d_logits.t(), hidden[chunk])
        elif has_wide_products(weight):
            self.weight = torch.addmm(self.weight, d_logits.t(), hidden[chunk], out_dtype=torch.float32)
        else:
            self.weight += d_logits.t() @ hidden[chunk]

    def gradients(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Of hidden states, weight and bias, in their own dtypes."""
        weight, bias = (None if total is None else total.to(self.dtype) for total in (self.weight, self.bias))
        return self.hidden, weight, bias


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, form: _Form
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy = (hidden.new_empty(len(targets), dtype=wide) for _ in range(2))
        for chunk in form.chunks(len(targets)):
            logits = _product(hidden[chunk], weight)
            logprobs[chunk], entropy[chunk], _, _ = form.measured(logits, bias, targets[chunk])
        ctx.save_for_backward(hidden, weight, bias, targets)
        ctx.form = form
        ctx.set_materialize_grads(False)  # None, not zeros, where a loss does not use the entropies
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        of_logprobs, of_entropy = slopes
        hidden, weight, bias, targets = ctx.saved_tensors
        form: _Form = ctx.form
        sums = _Sums(hidden, weight, bias, ctx.needs_input_grad)
        for chunk in form.chunks(len(targets)):
            centred, of_cap = centre(_product(hidden[chunk], weight), bias, form.cap, form.temperature)
            _, entropy, p, log_total = measure(centred, targets[chunk])
            extra = None
            if of_entropy is not None:  # dH / dlogits = -p (log p + H)
                log_p = centred - log_total[:, None]
                extra = p * (log_p + entropy[:, None]) * (-of_entropy[chunk, None] / form.temperature)
            if of_logprobs is None:
                d_logits = p.zero_()
            else:
                d_logits = back_through_softmax(p, targets[chunk], of_logprobs[chunk], form.temperature)
            sums.add(hidden, weight, chunk, d_logits if extra is None else d_logits + extra, of_cap)
        return *sums.gradients(), None, None


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        loss_of_tokens: LossOfTokens,
        form: _Form,
    ) -> tuple[Tensor, Tensor, Tensor, Statistics]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy = (hidden.new_empty(len(targets), dtype=wide) for _ in range(2))
        loss, statistics = hidden.new_zeros((), dtype=torch.float64), NOTHING
        sums = _Sums(hidden, weight, bias, ctx.needs_input_grad)
        for chunk in form.chunks(len(targets)):
            logits = _product(hidden[chunk], weight)
            logprobs[chunk], entropy[chunk], p, of_cap = form.measured(logits, bias, targets[chunk])
            del logits  # frees a tensor as large as p
            with torch.enable_grad():  # autograd for the loss formula only, on [c] numbers
                leaf = logprobs[chunk].detach().requires_grad_()
                losses, of_chunk = loss_of_tokens(leaf, entropy[chunk], chunk)
                part = losses.sum()
                (slopes,) = torch.autograd.grad(part, leaf)
            loss += part.detach()
            statistics = merge(statistics, of_chunk)
            sums.add(hidden, weight, chunk, back_through_softmax(p, targets[chunk], slopes, form.temperature), of_cap)
        ctx.save_for_backward(*sums.gradients())  # instead of logits: backward only scales them
        ctx.mark_non_differentiable(logprobs, entropy)
        return loss.to(wide), logprobs, entropy, statistics

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (None if g is None else g * of_loss.to(g.dtype) for g in ctx.saved_tensors)
        return *gradients, None, None, None
