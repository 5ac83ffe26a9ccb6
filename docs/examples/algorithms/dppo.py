"""DPPO with binary total variation (2026, arXiv 2602.04879) as a loss: `algorithm.loss=dppo.binary_tv`.

A token carries no loss once its probability has moved too far, where PPO looks at its ratio: a rare token may double.
The rest is REINFORCE with the bounded ratio as a constant weight, as in verl.
"""

import torch
from torch import Tensor

from dapo_lit.objective.losses import importance_ratio
from dapo_lit.objective.needs import Needs


@Needs(options={"delta": (0, 1), "cap": (1, 1e4)}, source="DPPO, arXiv 2602.04879")
def binary_tv(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, delta: float = 0.15, cap: float = 20.0
) -> Tensor:
    """`-sg(min(r, cap)) A log pi`, 0 where A > 0 and `pi - pi_old > delta`, or A < 0 and `pi - pi_old < -delta`.

    pi_old = 1/4 and A = 1: at pi = 1/2 it has moved by 1/4 > 0.15 and carries no loss; at pi = 3/8, by 1/8, and the
    slope is -r = -3/2.

    >>> logprobs = torch.tensor([0.5, 0.375]).log().requires_grad_()
    >>> losses = binary_tv(logprobs, torch.tensor([0.25, 0.25]).log(), torch.ones(2))
    >>> torch.autograd.grad(losses.sum(), logprobs)[0].tolist()
    [-0.0, -1.5]
    """
    moved = logprobs.detach().exp() - old_logprobs.exp()
    inside = torch.where(advantages > 0, moved <= delta, moved >= -delta)
    weight = importance_ratio(logprobs, old_logprobs).detach().clamp(max=cap)
    return -(weight * inside) * advantages * logprobs
