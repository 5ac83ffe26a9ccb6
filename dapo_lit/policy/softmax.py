"""The head's arithmetic between its matrix products: from a chunk's logits to log-probs and entropies, and back.

On both ways new memory costs more than the arithmetic:

- `InPlace`, eager: each operation overwrites what the one before it left; logits, probabilities, their gradient.
- `Fused`, compiled: logits stay as they are, and each row keeps its maximum and its log normaliser, from which backward
  computes the probabilities again. The logits are read twice forward and once backward, and the only other tensor
  [c, V] is the gradient, in the dtype of the matrix products.

Both get logits without the bias. cap: bound of logits + bias, before the temperature.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

Gradients = tuple[Float[Tensor, "c V"], Float[Tensor, "V"] | None]
"""dloss / dlogits, in the dtype of the matrix products; dloss / dbias, in float32 or wider, if it is asked for."""


class InPlace:
    """Log-probs and entropies of a chunk by eager operations, which overwrite its logits."""

    def __init__(
        self,
        logits: Float[Tensor, "c V"],
        bias: Float[Tensor, "V"] | None,
        targets: Int64[Tensor, "c"],
        cap: float | None,
        temperature: float,
        *,
        entropy_gradient: bool = False,
    ) -> None:
        centred, self._of_cap = centre(logits, bias, cap, temperature)
        self.logprobs, self.entropy, self._p, log_total = measure(centred, targets)
        # Only for the gradient of the entropies, as it is another tensor as large as the probabilities.
        self._log_p = centred.sub_(log_total[:, None]) if entropy_gradient else None
        self._targets, self._temperature = targets, temperature

    def backward(
        self,
        of_logprobs: Float[Tensor, "c"],
        of_entropy: Float[Tensor, "c"] | None,
        dtype: torch.dtype,
        *,
        with_bias: bool,
    ) -> Gradients:
        """From dloss / dlogprobs and dloss / dentropy. Once only: the probabilities are overwritten."""
        by_entropy = None
        if of_entropy is not None:
            assert self._log_p is not None
            entropy = self.entropy.detach()
            by_entropy = back_through_entropy(self._p, self._log_p, entropy, of_entropy, self._temperature)
        d_logits = back_through_softmax(self._p, self._targets, of_logprobs, self._temperature)
        if by_entropy is not None:
            # Added as logits' gradients, before the two matrix products that both share.
            d_logits.add_(by_entropy)
        if self._of_cap is not None:
            # The chain rule of the soft cap, before anything is multiplied with it.
            d_logits.mul_(self._of_cap)
        # Narrow for the products, as in a backward pass of the model itself.
        return d_logits.to(dtype), d_logits.sum(0) if with_bias else None


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
    # Clamped as in `measure`: a token of probability 0 has no gradient, and 0 * -inf is NaN.
    log_p.clamp_(min=torch.finfo(log_p.dtype).min)
    return log_p.add_(entropy[:, None]).mul_(p).mul_(-slopes[:, None] / temperature)


class Fused:
    """Log-probs and entropies of a chunk by compiled code, which keeps its logits for backward."""

    def __init__(
        self,
        logits: Float[Tensor, "c V"],
        bias: Float[Tensor, "V"] | None,
        targets: Int64[Tensor, "c"],
        cap: float | None,
        temperature: float,
        *,
        entropy_gradient: bool = False,  # costs nothing here
    ) -> None:
        self._logits, self._form = logits, (bias, targets, cap, temperature)
        self._rows = compiled().forward(logits, *self._form)
        self.logprobs, self.entropy = self._rows.logprobs, self._rows.entropy

    def backward(
        self,
        of_logprobs: Float[Tensor, "c"],
        of_entropy: Float[Tensor, "c"] | None,
        dtype: torch.dtype,
        *,
        with_bias: bool,
    ) -> Gradients:
        """From dloss / dlogprobs and dloss / dentropy. Once only: a gradient as wide as the logits overwrites them."""
        rows = Rows(*(x.detach() for x in self._rows))
        d_logits = compiled().backward(self._logits, *self._form, rows, of_logprobs, of_entropy, dtype)
        # Of what the products get too. In the compiled code, a second use would keep the gradient in float32 as well.
        return d_logits, d_logits.sum(0, dtype=self._logits.dtype) if with_bias else None


class Rows(NamedTuple):
    """What is known of each row of a chunk after the forward pass."""

    logprobs: Float[Tensor, "c"]
    entropy: Float[Tensor, "c"]
    maximum: Float[Tensor, "c"]
    """Of the logits over the temperature."""
    log_total: Float[Tensor, "c"]
    """Log normaliser of the logits minus their maximum. Apart from it, or float32 would round large logits' sum."""


def scaled(
    logits: Float[Tensor, "c V"], bias: Float[Tensor, "V"] | None, cap: float | None, temperature: float
) -> tuple[Float[Tensor, "c V"], Float[Tensor, "c V"] | None]:
    """Logits with bias and soft cap over the temperature; the slope of the cap."""
    if bias is not None:
        logits = logits + bias
    if cap is None:
        return logits / temperature, None
    bounded = (logits / cap).tanh()
    return bounded * cap / temperature, 1 - bounded.square()


def forward(
    logits: Float[Tensor, "c V"],
    bias: Float[Tensor, "V"] | None,
    targets: Int64[Tensor, "c"],
    cap: float | None,
    temperature: float,
) -> Rows:
    """What `measure` gives, and writes no tensor [c, V] once it is compiled."""
    x, _ = scaled(logits, bias, cap, temperature)
    maximum = x.amax(-1)
    centred = x - maximum[:, None]
    e = centred.exp()
    total = e.sum(-1)
    log_total = total.log()
    # Clamped as in `measure`. The division comes after the sum, or it would be a third pass over the logits.
    entropy = log_total - (e * centred.clamp(min=torch.finfo(centred.dtype).min)).sum(-1) / total
    return Rows(centred.gather(-1, targets[:, None]).squeeze(-1) - log_total, entropy, maximum, log_total)


def backward(
    logits: Float[Tensor, "c V"],
    bias: Float[Tensor, "V"] | None,
    targets: Int64[Tensor, "c"],
    cap: float | None,
    temperature: float,
    rows: Rows,
    of_logprobs: Float[Tensor, "c"],
    of_entropy: Float[Tensor, "c"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "c V"]:
    """dloss / dlogits in `dtype`: `back_through_softmax`, `back_through_entropy` and the soft cap in one pass."""
    x, slope = scaled(logits, bias, cap, temperature)
    log_p = x - rows.maximum[:, None] - rows.log_total[:, None]
    p = log_p.exp()
    # The one-hot is a comparison of the column's number: as an operation of its own, scatter would be another pass.
    is_target = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    d = (is_target.to(p.dtype) - p) * of_logprobs[:, None]
    if of_entropy is not None:
        d = d - p * (log_p.clamp(min=torch.finfo(p.dtype).min) + rows.entropy[:, None]) * of_entropy[:, None]
    d = d / temperature
    if slope is not None:
        d = d * slope
    # Wide products take the gradient where the logits are: no second tensor of four bytes a logit.
    return logits.copy_(d) if dtype == logits.dtype else d.to(dtype)


@dataclass(frozen=True)
class Compiled:
    """`forward` and `backward` as compiled code."""

    forward: Callable[..., Rows]
    backward: Callable[..., Tensor]


@cache
def compiled() -> Compiled:
    """Made once in a process: a kernel or two each, where eager operations are a dozen passes over the logits."""
    # `dynamic`, or the last chunk and every other number of tokens compile again.
    return Compiled(torch.compile(forward, dynamic=True), torch.compile(backward, dynamic=True))
