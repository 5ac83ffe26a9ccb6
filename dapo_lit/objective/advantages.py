"""Group-relative advantages (DAPO Eq. 9): how much better a completion is than the others of its prompt.

No value network and no discount: every token of a completion carries the advantage of the completion.
"""

import torch
from torch import Tensor

from dapo_lit.objective.losses import at_least_float32

_ROUNDING_STEPS = 4
"""Rewards that differ by at most this many units in the last place are equal: `1.0 - 0.7` against `0.3`."""


def group_advantages(
    rewards: Tensor, *, scale_by_std: bool = True, unbiased_std: bool = True, epsilon: float = 1e-6
) -> Tensor:
    """DAPO Eq. 9: `A_i = (R_i - mean(R_1..R_G)) / (std(R_1..R_G) + epsilon)`, for each prompt on its own.

    A group whose rewards are all equal, up to float rounding, gets exactly 0: it says nothing about which
    completion was better. Completions that carry no loss belong in `rewards` all the same, because leaving them out
    would move the mean and the std of the others.

    Args:
        rewards: [P, G] rewards after shaping, one row a prompt; any real dtype, computed in float64.
        scale_by_std: False leaves out the division (Dr. GRPO, arXiv 2503.20783).
        unbiased_std: divide the squared deviations by G - 1 (torch's default and the authors' code), not by G.
        epsilon: added to the std, in the unit of the rewards; the paper does not state it, the authors' code has 1e-6.

    Returns:
        [P, G] advantages in units of the group's std (of the reward, where `scale_by_std` is False), detached,
        float32 or the wider dtype of `rewards`.

    Raises:
        ValueError: `rewards` is not [P, G], or G < 2, where there is nothing to compare with.

    >>> group_advantages(torch.tensor([[1.0, 1.0, -1.0, -1.0]]), epsilon=0.0, unbiased_std=False)
    tensor([[ 1.,  1., -1., -1.]])
    """
    if rewards.ndim != 2:
        raise ValueError(f"rewards must be [P, G] (prompts, samples a prompt), got shape {tuple(rewards.shape)}")
    if rewards.shape[1] < 2:
        raise ValueError(f"rewards needs G >= 2 samples a prompt to compare, got G = {rewards.shape[1]}")
    result_dtype = at_least_float32(rewards).dtype
    values = rewards.detach().double()
    deviation = values - values.mean(dim=1, keepdim=True)
    if scale_by_std:
        std = values.std(dim=1, keepdim=True, correction=1 if unbiased_std else 0)
        advantages = deviation / (std + epsilon)
    else:
        advantages = deviation
    # Rounding alone makes a std of about 1e-8, which the division would blow up to visible advantages.
    spread = values.amax(dim=1, keepdim=True) - values.amin(dim=1, keepdim=True)
    rounding = _ROUNDING_STEPS * torch.finfo(result_dtype).eps * values.abs().amax(dim=1, keepdim=True)
    return advantages.masked_fill(spread <= rounding, 0.0).to(result_dtype)
