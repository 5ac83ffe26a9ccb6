"""Log-probs and entropies of the response tokens from hidden states, without a [tokens, vocabulary] tensor.

Only the positions that predict a response token go through the language-model head, in chunks of tokens:

- `token_logprobs` returns differentiable log-probs for any loss. Its backward pass recomputes the logits: four matrix
  products of hidden states and head in all.
- `HeadPass` is for a loss that is a sum over tokens, where the loss of a token depends only on its own log-prob and
  entropy. Its caller walks over the chunks and gives each chunk's loss back at once, so that the gradient is computed
  while the logits are there: three products, and only the gradients of hidden states and head are kept.

Matrix products take the dtype of the weights, or float32 with `fp32` (which copies hidden states and head). On a GPU
they return their float32 sums; elsewhere logits are rounded to the dtype of the weights first. All other arithmetic,
and the sum of the head's gradient, is float32 or wider. Autograd adds the gradient of a tied head to the embedding's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from dapo_lit.kernels import has_storage, is_on_gpu
from dapo_lit.policy.attention import Layout, packed_hidden
from dapo_lit.policy.softmax import Fused, InPlace

CHUNK_ELEMENTS = 1 << 22
"""A chunk has at least this many logits: 16 MB in float32."""
CHUNK_ROWS = {"cpu": 256, "cuda": 2048}
"""A chunk has at least this many tokens, because every chunk reads the whole head three times."""


@dataclass(frozen=True)
class Head:
    """The map from hidden states to logits: x = scale (W h + b), then cap tanh(x / cap) if there is a soft cap."""

    weight: Float[Tensor, "V H"]
    bias: Float[Tensor, "V"] | None = None
    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """The head of a causal language model. A sharded one must be gathered."""
        layer, config = model.get_output_embeddings(), model.config.get_text_config()
        # By the fields of the config, as transformers has no common name: missing one gives log-probs of another model.
        scale = getattr(config, "logit_scale", None) or 1.0  # Cohere
        # Granite divides by it, HyperCLOVA X multiplies.
        scaling = getattr(config, "logits_scaling", None)
        if scaling:
            scale = scaling if config.model_type == "hyperclovax" else 1 / scaling
        softcap = getattr(config, "final_logit_softcapping", None)  # Gemma 2
        return cls(layer.weight, getattr(layer, "bias", None), float(scale), softcap)

    def widened(self) -> Self:
        """In float32 or wider."""
        return replace(self, weight=_widened(self.weight), bias=None if self.bias is None else _widened(self.bias))

    def logits(self, hidden: Float[Tensor, "n H"]) -> Float[Tensor, "n V"]:
        """Logits, float32 or wider: for few tokens, since autograd keeps all of them."""
        # For base policies in pre-training, which are tiny; the updates go through HeadPass.
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
    # Whichever is more: a tiny vocabulary takes many rows, a large one is bounded by memory.
    return max(CHUNK_ELEMENTS // vocabulary, CHUNK_ROWS.get(device, CHUNK_ROWS["cuda"]))


def token_logprobs(
    model: PreTrainedModel,
    input_ids: Int64[Tensor, "T"],
    packed: Layout,
    rows: Int64[Tensor, "n"],
    targets: Int64[Tensor, "n"],
    *,
    temperature: float,
    fp32: bool = False,
    rows_per_chunk: int | None = None,
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Log-probs of `targets`, with gradient, and entropies, without, at the temperature of sampling.

    rows: the packed token of `input_ids` whose hidden state predicts each target. `fp32`: the head is computed in
    float32 even if the weights are narrower.
    """
    # Not model(...): its own forward would make the logits of every token, prompts included.
    hidden = packed_hidden(model, input_ids, packed)[rows]
    head = Head.of(model)
    return scores(hidden, head, targets, temperature=temperature, fp32=fp32, rows_per_chunk=rows_per_chunk)


def scores(
    hidden: Float[Tensor, "n H"],
    head: Head,
    targets: Int64[Tensor, "n"],
    *,
    temperature: float,
    fp32: bool = False,
    rows_per_chunk: int | None = None,
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Log-probs of `targets`, with gradient, and entropies, from the hidden states that predict them."""
    if fp32:
        hidden, head = _widened(hidden), head.widened()
    # A function of autograd's own, so that backward recomputes logits instead of keeping [n, V].
    logprobs, entropy = _Scores.apply(hidden, head.weight, head.bias, targets, _form(head, temperature, rows_per_chunk))
    return logprobs, entropy


class Chunk:
    """Some of the n tokens, while a row over the vocabulary of each is in memory."""

    def __init__(self, owner: "HeadPass", tokens: slice) -> None:
        self.tokens = tokens
        """Their places among the n."""
        self._owner = owner
        self._softmax = owner.form.softmax(
            owner.hidden[tokens],
            owner.weight,
            owner.bias,
            owner.targets[tokens],
            entropy_gradient=owner.entropy_gradient,
        )
        # Detached from the head on purpose: autograd sees the loss formula, and the way back to the logits is below.
        self.logprobs = self._softmax.logprobs.requires_grad_()
        """[c] nats, a leaf of autograd: `backward` reads the slope of the loss here."""
        self.entropy = self._softmax.entropy.requires_grad_(owner.entropy_gradient)
        """[c] nats, a leaf too where the loss differentiates it."""

    def backward(self, loss: Float[Tensor, ""]) -> None:
        """Adds the gradient of `loss`, a sum over the chunk's tokens, to that of hidden states and head.

        Once only: what is kept of the chunk is freed before the next one needs as much memory.
        """
        owner = self._owner
        # Not through the entropies where the loss has no bonus: eager, that takes another tensor [c, V].
        leaves = [self.logprobs, self.entropy] if owner.entropy_gradient else [self.logprobs]
        # Autograd for the loss formula only, on [c] numbers.
        of_logprobs, *of_entropy = torch.autograd.grad(loss, leaves)
        d_logits, d_bias = self._softmax.backward(
            of_logprobs,
            of_entropy[0] if of_entropy else None,
            owner.weight.dtype,
            with_bias=owner.sums.bias is not None,
        )
        owner.sums.add(owner.hidden, owner.weight, self.tokens, d_logits, d_bias)
        del self._softmax


class HeadPass:
    """The way of n tokens through the head: `for chunk in head.chunks(): chunk.backward(loss of the chunk)`.

    hidden: the states that predict the tokens. head: of the model; a sharded one must be gathered. targets: token ids.
    temperature: of sampling. entropy_gradient: the loss differentiates the entropies. fp32: the head is computed in
    float32 even if the weights are narrower. compiles: the arithmetic between the products is compiled.
    rows_per_chunk: None: `chunk_rows` of the device.
    """

    def __init__(
        self,
        hidden: Float[Tensor, "n H"],
        head: Head,
        targets: Int64[Tensor, "n"],
        *,
        temperature: float,
        entropy_gradient: bool = False,
        fp32: bool = False,
        compiles: bool = False,
        rows_per_chunk: int | None = None,
    ) -> None:
        if fp32:
            hidden, head = _widened(hidden), head.widened()
        # Kept with their graph: `with_gradient` hangs the gradients on them at the end.
        self._inputs = (hidden, head.weight, head.bias)
        self.hidden, self.weight, self.bias = hidden.detach(), head.weight.detach(), head.bias
        if self.bias is not None:
            self.bias = self.bias.detach()
        self.targets, self.entropy_gradient = targets, entropy_gradient
        self.form = _form(head, temperature, rows_per_chunk, compiles)
        # A frozen head (adapters) has no gradient, which saves the largest of the three products.
        needed = tuple(x is not None and x.requires_grad for x in self._inputs)
        self.sums = _Sums(self.hidden, self.weight, self.bias, needed)

    def chunks(self) -> Iterator[Chunk]:
        """The tokens in order, at most `chunk_rows` at once."""
        for tokens in self.form.chunks(len(self.targets)):
            yield Chunk(self, tokens)

    def with_gradient(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """`loss`, the sum over all chunks, differentiable in hidden states and head: backward only scales what the
        chunks gave."""
        wide = torch.promote_types(self.hidden.dtype, torch.float32)
        return _KnownGradient.apply(loss.to(wide), self.sums.gradients(), *self._inputs)


def has_wide_products(tensor: Tensor) -> bool:
    """A matrix product of this tensor can return its float32 sums without rounding them to the dtype."""
    return is_on_gpu(tensor) and tensor.dtype in (torch.float16, torch.bfloat16)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class _Form(NamedTuple):
    """Everything about logits except the tensors, which autograd must see as arguments."""

    temperature: float
    """Divided by the head's scale."""
    cap: float | None
    """The soft cap divided by the head's scale: the bound of W h + b."""
    rows: int
    compiles: bool
    """Only the arithmetic between the products: those are in the libraries' kernels already."""

    def softmax(
        self,
        hidden: Float[Tensor, "c H"],
        weight: Float[Tensor, "V H"],
        bias: Float[Tensor, "V"] | None,
        targets: Int64[Tensor, "c"],
        *,
        entropy_gradient: bool = False,
    ) -> InPlace | Fused:
        """Of a chunk; holds a tensor [c, V]."""
        # A chunk of one token is not worth it: torch compiles again for a size of one.
        kind = Fused if self.compiles and len(hidden) > 1 else InPlace
        logits = _product(hidden, weight)
        return kind(logits, bias, targets, self.cap, self.temperature, entropy_gradient=entropy_gradient)

    def chunks(self, tokens: int) -> list[slice]:
        return [slice(start, min(start + self.rows, tokens)) for start in range(0, tokens, self.rows)]


def _form(head: Head, temperature: float, rows: int | None = None, compiles: bool = False) -> _Form:
    # Scale and temperature in one: x = scale (W h + b) / temperature needs one pass over [c, V].
    cap = None if head.softcap is None else head.softcap / head.scale
    rows = rows or chunk_rows(len(head.weight), head.weight.device.type)
    return _Form(temperature / head.scale, cap, rows, compiles)


def _product(hidden: Float[Tensor, "c H"], weight: Float[Tensor, "V H"]) -> Float[Tensor, "c V"]:
    """W h, float32 or wider."""
    # The tensor cores add in float32; rounding their sums to bfloat16 would lose what old and new log-probs differ
    # by.
    if has_wide_products(weight):
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return _widened(torch.mm(hidden, weight.t()))


class _Sums:
    """Accumulates the gradients of hidden states and head over chunks."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, needed: tuple[bool, ...]) -> None:
        wide = torch.promote_types(weight.dtype, torch.float32)
        # Every row is written by exactly one chunk.
        self.hidden = torch.empty_like(hidden) if needed[0] else None
        # Wide: hundreds of chunks are added, and in bfloat16 the last ones would vanish.
        self.weight = torch.zeros_like(weight, dtype=wide) if needed[1] else None
        self.bias = torch.zeros_like(bias, dtype=wide) if bias is not None and needed[2] else None
        self.dtype = weight.dtype

    def add(self, hidden: Tensor, weight: Tensor, chunk: slice, d_logits: Tensor, d_bias: Tensor | None) -> None:
        if self.bias is not None and d_bias is not None:
            self.bias += d_bias
        if self.hidden is not None:
            torch.mm(d_logits, weight, out=self.hidden[chunk])
        if self.weight is None:
            return
        if self.weight.dtype == weight.dtype:
            self.weight.addmm_(d_logits.t(), hidden[chunk])
        elif has_wide_products(weight):
            # In place: as a new tensor each chunk would write the whole gradient of the head again. So there is no
            # memory to count, and torch 2.11 cannot do this without storage: its shapes take the dtype for a factor.
            if has_storage(weight):
                torch.addmm(self.weight, d_logits.t(), hidden[chunk], out_dtype=torch.float32, out=self.weight)
        else:
            self.weight += d_logits.t() @ hidden[chunk]

    def gradients(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of hidden states, weight and bias, in their own dtypes."""
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
            found = form.softmax(hidden[chunk], weight, bias, targets[chunk])
            logprobs[chunk], entropy[chunk] = found.logprobs, found.entropy
            del found  # Before the next chunk needs as much memory.
        ctx.save_for_backward(hidden, weight, bias, targets)
        ctx.form = form
        # It is measured only; a loss that differentiates it takes HeadPass.
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, of_logprobs: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets = ctx.saved_tensors
        form: _Form = ctx.form
        sums = _Sums(hidden, weight, bias, ctx.needs_input_grad)
        for chunk in form.chunks(len(targets)):
            # The same products as in forward: time instead of the memory of [n, V].
            found = form.softmax(hidden[chunk], weight, bias, targets[chunk])
            d_logits, d_bias = found.backward(of_logprobs[chunk], None, weight.dtype, with_bias=sums.bias is not None)
            sums.add(hidden, weight, chunk, d_logits, d_bias)
            del found, d_logits
        return *sums.gradients(), None, None


class _KnownGradient(torch.autograd.Function):
    """A value whose gradient by each input is there already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: tuple[Tensor | None, ...], *inputs: Tensor | None) -> Tensor:
        ctx.save_for_backward(*gradients)
        # A clone, because a function of autograd must not return an input as its output.
        return value.clone()

    @staticmethod
    def backward(ctx: Any, of_value: Tensor) -> tuple[Tensor | None, ...]:
        # Scaled by the gradient of the value, which is 1 unless a strategy scales the loss.
        return None, None, *(None if g is None else g * of_value.to(g.dtype) for g in ctx.saved_tensors)
