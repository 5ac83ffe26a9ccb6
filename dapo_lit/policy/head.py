"""Log-probs and entropies of the response tokens from hidden states, without a [tokens, vocabulary] tensor.

Only the positions that predict a response token go through the language-model head, in chunks of tokens:

- `token_logprobs` returns differentiable log-probs for any loss. Its backward pass recomputes the logits: four matrix
  products of hidden states and head in all.
- `token_loss` takes a loss that is a sum over tokens. The loss of a token depends only on its own log-prob, so the
  gradient is computed in the forward pass: three products, and only the gradients are kept.

Matrix products use the dtype of the weights, or float32 with `fp32` (which copies hidden states and head). All other
arithmetic, and the sum of the head's gradient, is float32 or wider. Autograd adds the gradient of a tied head to the
embedding's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dapo_lit.policy.attention import Layout, packed_hidden

CHUNK_ELEMENTS = 1 << 22
"""Number of logits in a chunk: 16 MB in fp32. Larger chunks are no faster."""

LossOfTokens = Callable[[Tensor, slice], Tensor]
"""(log-probs [c], slice of the n tokens) -> weighted loss of each token [c], differentiable in the log-probs."""


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
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of `targets` under the sampling distribution (temperature applied), in fp32.

    Args:
        model: a causal language model of transformers.
        input_ids: [T] packed tokens.
        packed: their layout.
        rows: [n] the packed token whose hidden state predicts each target.
        targets: [n].
        entropy_gradient: the entropies have a gradient too.
        fp32: compute the head in float32 even if the weights are narrower.

    Returns:
        Log-probs [n] in nats, with gradient; entropies [n] over the full vocabulary.
    """
    hidden = packed_hidden(model, input_ids, packed)[rows]
    weight = model.get_output_embeddings().weight
    if fp32:
        hidden, weight = _widened(hidden), _widened(weight)
    logprobs, entropy = _Scores.apply(hidden, weight, targets, temperature)
    return logprobs, entropy if entropy_gradient else entropy.detach()


def token_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    loss_of_tokens: LossOfTokens,
    *,
    temperature: float,
    fp32: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of a loss over tokens, with its gradient computed in the forward pass.

    Args:
        hidden: [n, hidden size] hidden states that predict the targets.
        weight: [V, hidden size] of the head.
        targets: [n].
        loss_of_tokens: called once a chunk; must depend on the chunk's tokens only.
        fp32: compute the head in float32 even if the weights are narrower.

    Returns:
        The loss, differentiable in `hidden` and `weight`; log-probs [n] and entropies [n], detached.
    """
    if fp32:
        hidden, weight = _widened(hidden), _widened(weight)
    return _Loss.apply(hidden, weight, targets, loss_of_tokens, temperature)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _chunks(tokens: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]


def _centred(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """[c, V] logits / temperature minus each row's maximum; float32 or wider."""
    logits = torch.mm(hidden, weight.t())
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).div_(temperature)
    return logits.sub_(logits.amax(-1, keepdim=True))


def _measure(centred: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probs [c] of the targets, entropies [c], probabilities [c, V], log normalisers [c].

    `sum` adds pairwise, log_softmax on the CPU sequentially: its log-probs are three times as far from float64 at a
    vocabulary of 49k.
    """
    p = centred.exp()
    total = p.sum(-1)
    p.div_(total[:, None])
    log_total = total.log()
    # Clamped because 0 * -inf is NaN: a token of probability 0 adds nothing.
    entropy = log_total - torch.linalg.vecdot(p, centred.clamp(min=torch.finfo(centred.dtype).min))
    return centred.gather(-1, targets[:, None]).squeeze(-1) - log_total, entropy, p, log_total


def _back_through_softmax(p: Tensor, targets: Tensor, slopes: Tensor, temperature: float) -> Tensor:
    """dloss / dlogits [c, V] from dloss / dlogprobs [c]; overwrites the probabilities."""
    return p.mul_(-slopes[:, None]).scatter_add_(1, targets[:, None], slopes[:, None]).div_(temperature)


class _Sums:
    """Accumulates the gradients of hidden states and head over chunks."""

    def __init__(self, hidden: Tensor, weight: Tensor, needs_hidden: bool, needs_weight: bool) -> None:
        wide = torch.promote_types(weight.dtype, torch.float32)
        self.hidden = torch.empty_like(hidden) if needs_hidden else None
        self.weight = torch.zeros_like(weight, dtype=wide) if needs_weight else None

    def add(self, hidden: Tensor, weight: Tensor, chunk: slice, d_logits: Tensor) -> None:
        d_logits = d_logits.to(weight.dtype)
        if self.hidden is not None:
            torch.mm(d_logits, weight, out=self.hidden[chunk])
        if self.weight is None:
            return
        if self.weight.dtype == weight.dtype:
            self.weight.addmm_(d_logits.t(), hidden[chunk])
        else:
            self.weight += d_logits.t() @ hidden[chunk]


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy = (hidden.new_empty(len(targets), dtype=wide) for _ in range(2))
        for chunk in _chunks(len(targets), len(weight)):
            centred = _centred(hidden[chunk], weight, temperature)
            logprobs[chunk], entropy[chunk], _, _ = _measure(centred, targets[chunk])
        ctx.save_for_backward(hidden, weight, targets)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        of_logprobs, of_entropy = slopes
        hidden, weight, targets = ctx.saved_tensors
        sums = _Sums(hidden, weight, ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        for chunk in _chunks(len(targets), len(weight)):
            centred = _centred(hidden[chunk], weight, ctx.temperature)
            _, entropy, p, log_total = _measure(centred, targets[chunk])
            extra = None
            if of_entropy is not None:  # dH / dlogits = -p (log p + H)
                log_p = centred - log_total[:, None]
                extra = p * (log_p + entropy[:, None]) * (-of_entropy[chunk, None] / ctx.temperature)
            if of_logprobs is None:
                d_logits = p.zero_()
            else:
                d_logits = _back_through_softmax(p, targets[chunk], of_logprobs[chunk], ctx.temperature)
            sums.add(hidden, weight, chunk, d_logits if extra is None else d_logits + extra)
        return sums.hidden, None if sums.weight is None else sums.weight.to(weight.dtype), None, None


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, loss_of_tokens: LossOfTokens, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy = (hidden.new_empty(len(targets), dtype=wide) for _ in range(2))
        loss = hidden.new_zeros((), dtype=torch.float64)
        sums = _Sums(hidden, weight, ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        for chunk in _chunks(len(targets), len(weight)):
            centred = _centred(hidden[chunk], weight, temperature)
            logprobs[chunk], entropy[chunk], p, _ = _measure(centred, targets[chunk])
            del centred
            with torch.enable_grad():  # autograd for the loss formula only, on [c] numbers
                leaf = logprobs[chunk].detach().requires_grad_()
                part = loss_of_tokens(leaf, chunk).sum()
                (slopes,) = torch.autograd.grad(part, leaf)
            loss += part.detach()
            sums.add(hidden, weight, chunk, _back_through_softmax(p, targets[chunk], slopes, temperature))
        ctx.save_for_backward(sums.hidden, None if sums.weight is None else sums.weight.to(weight.dtype))
        ctx.mark_non_differentiable(logprobs, entropy)
        return loss.to(wide), logprobs, entropy

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        of_hidden, of_weight = (None if g is None else g * of_loss.to(g.dtype) for g in ctx.saved_tensors)
        return of_hidden, of_weight, None, None, None
