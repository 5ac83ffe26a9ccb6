"""W-REINFORCE (Zhu et al. 2025, arXiv 2506.01347, Eq. 9) as an estimator: `advantage.estimator=w_reinforce.weighted`.

Right answers are reinforced with a small weight and wrong ones in full, without a baseline.
"""

import torch
from torch import Tensor

from dapo_lit.objective.needs import Needs


@Needs(rewards=(-1, 1), both_signs=True, options={"weight": (0, 1)}, source="W-REINFORCE, arXiv 2506.01347, Eq. 9")
def weighted(rewards: Tensor, *, weight: float = 0.1) -> Tensor:
    """`A = weight * R` where R > 0, else `R`; the paper's weight is 0.1.

    >>> weighted(torch.tensor([[1.0, -1.0]]), weight=0.25).tolist()
    [[0.25, -1.0]]
    """
    return torch.where(rewards > 0, weight * rewards, rewards)
