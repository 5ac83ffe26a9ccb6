"""SAPO (Gao et al. 2025, arXiv 2511.20347) as a loss: `algorithm.loss=sapo.sapo`.

A soft gate on the ratio of each token takes the place of PPO's clip. Its slope at ratio 1 is 1, as that of the ratio
itself, and falls on both sides; the temperature for A < 0 is higher, so that gate closes sooner.
"""

import torch
from torch import Tensor

from dapo_lit.objective.losses import importance_ratio
from dapo_lit.objective.needs import Needs


@Needs(options={"tau_positive": (0.01, 100), "tau_negative": (0.01, 100)}, source="SAPO, arXiv 2511.20347")
def sapo(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, tau_positive: float = 1.0, tau_negative: float = 1.05
) -> Tensor:
    """`-f(r) A` with `f(r) = 4 / tau * sigmoid(tau (r - 1))`.

    At r = 1 and tau = 1, f = 4 * 1/2 = 2; the loss of A = 3 is -6, and its slope -f'(1) r A = -(4 * 1/4) * 3 = -3.

    >>> logprob = torch.tensor([-1.0], requires_grad=True)
    >>> loss = sapo(logprob, torch.tensor([-1.0]), torch.tensor([3.0]))
    >>> loss.item(), torch.autograd.grad(loss, logprob)[0].item()
    (-6.0, -3.0)
    """
    tau = torch.where(advantages > 0, tau_positive, tau_negative)
    gate = 4 / tau * torch.sigmoid(tau * (importance_ratio(logprobs, old_logprobs) - 1))
    return -gate * advantages
