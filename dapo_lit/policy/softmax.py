"""The head's arithmetic between its matrix products: log-probs, entropies and probabilities from a chunk of logits.

It works in place, because new memory costs more than the arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int64
from torch import Tensor

Measured = tuple[Float[Tensor, "c"], Float[Tensor, "c"], Float[Tensor, "c V"], Float[Tensor, "c V"] | None]
"""Log-probs of the targets, entropies, probabilities, slope of the soft cap if there is one."""


def measured(
    logits: Float[Tensor, "c V"],
    bias: Float[Tensor, "V"] | None,
    targets: Int64[Tensor, "c"],
    cap: float | None,
    temperature: float,
) -> Measured:
    """logits: overwritten. cap: bound of logits + bias, before the temperature."""
    centred, slope = centre(logits, bias, cap, temperature)
    logprobs, entropy, p, _ = measure(centred, targets)
    return logprobs, entropy, p, slope


def centre(
    logits: Float[Tensor, "c V"], bias: Float[Tensor, "V"] | None, cap: float | None, temperature: float
) -> tuple[Float[Tensor, "c V"], Float[Tensor, "c V"] | None]:
    """Logits / temperature minus each row's maximum, in place; the slope of the soft cap."""
    if bias is not None:
        logits.add_(bias)
    slope = None
    if cap is not None:
        logits.div_(cap).tanh_()
        # The derivative of tanh, before the next line overwrites it.
        slope = 1 - logits.square()
        logits.mul_(cap)
    logits.div_(temperature)
    # Minus the maximum, or exp overflows at logits above 88.
    return logits.sub_(logits.amax(-1, keepdim=True)), slope


def measure(
    centred: Float[Tensor, "c V"], targets: Int64[Tensor, "c"]
) -> tuple[Float[Tensor, "c"], Float[Tensor, "c"], Float[Tensor, "c V"], Float[Tensor, "c"]]:
    """Log-probs of the targets, entropies, probabilities, log normalisers.

    `sum` adds pairwise, log_softmax on the CPU sequentially: its log-probs are three times as far from float64 at a
    vocabulary of 49k.
    """
    # Once: log-probs, entropies and both gradients come from these probabilities.
    p = centred.exp()
    total = p.sum(-1)
    p.div_(total[:, None])
    log_total = total.log()
    # Clamped because 0 * -inf is NaN: a token of probability 0 adds nothing.
    entropy = log_total - torch.linalg.vecdot(p, centred.clamp(min=torch.finfo(centred.dtype).min))
    return centred.gather(-1, targets[:, None]).squeeze(-1) - log_total, entropy, p, log_total


def back_through_softmax(
    p: Float[Tensor, "c V"], targets: Int64[Tensor, "c"], slopes: Float[Tensor, "c"], temperature: float
) -> Float[Tensor, "c V"]:
    """dloss / dlogits from dloss / dlogprobs; overwrites the probabilities."""
    # (1[target] - p) * slope / temperature, without a tensor for the one-hot.
    return p.mul_(-slopes[:, None]).scatter_add_(1, targets[:, None], slopes[:, None]).div_(temperature)


def back_through_entropy(
    p: Float[Tensor, "c V"],
    log_p: Float[Tensor, "c V"],
    entropy: Float[Tensor, "c"],
    slopes: Float[Tensor, "c"],
    temperature: float,
) -> Float[Tensor, "c V"]:
    """dloss / dlogits from dloss / dentropy; overwrites log p. dH / dlogits = -p (log p + H)."""
    return log_p.add_(entropy[:, None]).mul_(p).mul_(-slopes[:, None] / temperature)


@dataclass(frozen=True)
class Arithmetic:
    """What is done to a chunk of logits, each function as above or compiled."""

    measured: Callable[[Tensor, Tensor | None, Tensor, float | None, float], Measured]
    back_through_softmax: Callable[[Tensor, Tensor, Tensor, float], Tensor]


EAGER = Arithmetic(measured, back_through_softmax)


@cache
def compiled() -> Arithmetic:
    """On a GPU a few kernels instead of a dozen, each of which reads and writes all logits."""

    def from_copy(
        logits: Tensor, bias: Tensor | None, targets: Tensor, cap: float | None, temperature: float
    ) -> Measured:
        # The copy is never made. Without it the compiled code would write the overwritten logits back.
        return measured(logits.clone(), bias, targets, cap, temperature)

    return Arithmetic(torch.compile(from_copy, dynamic=True), torch.compile(back_through_softmax, dynamic=True))
