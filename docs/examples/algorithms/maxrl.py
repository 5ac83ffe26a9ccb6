"""MaxRL (Tajwar et al. 2026, arXiv 2602.02710) as an estimator: `algorithm.advantage.estimator=maxrl.maxrl`.

The gradient of log(success probability) is that of the success probability over itself, so the group's mean reward
takes the place of the standard deviation in Eq. 9 of DAPO, and groups that rarely succeed weigh more.
"""

from math import inf

from torch import Tensor

from dapo_lit.objective.needs import Needs


# With rewards below 0 the mean may be negative, and every advantage would change its sign.
@Needs(group=2, rewards=(0, inf), source="MaxRL, arXiv 2602.02710: the mean reward is a success probability")
def maxrl(rewards: Tensor, *, epsilon: float) -> Tensor:
    """`A_i = (R_i - mean(R_1..R_G)) / (mean(R_1..R_G) + epsilon)`, [P, G]; 0 where nothing succeeds.

    One success of four: the mean is 1/4, so (1 - 1/4) / (1/4) = 3 and (0 - 1/4) / (1/4) = -1.

    >>> import torch
    >>> maxrl(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), epsilon=0.0).tolist()
    [[3.0, -1.0, -1.0, -1.0]]
    """
    mean = rewards.mean(dim=1, keepdim=True)
    return (rewards - mean) / (mean + epsilon)
