"""From rewards of tokens to advantages of tokens: the KL penalty in the reward, returns, and GAE.

Tensors are flat: the N tokens of B completions one after the other, each completion's in order, with `lengths` [B].
"""

import torch
from torch import Tensor

from dapo_lit.objective.tokens import at_least_float32


def token_rewards(outcomes: Tensor, kl: Tensor | None, lengths: Tensor, *, beta: float) -> Tensor:
    """`r_t = outcome at the last token - beta * kl_t` (InstructGPT, arXiv 2203.02155, Eq. 2; REINFORCE++), [N] float64.

    outcomes: [B] reward of each completion. kl: [N] penalty of each token in nats; None: no penalty. lengths: [B].

    >>> token_rewards(torch.tensor([1.0]), torch.tensor([0.5, 0.0, 0.25]), torch.tensor([3]), beta=0.1)
    tensor([-0.0500,  0.0000,  0.9750], dtype=torch.float64)
    """
    _require_lengths(lengths, int(lengths.sum()) if kl is None else len(kl))
    if outcomes.shape != lengths.shape:
        raise ValueError(f"outcomes and lengths must both be [B], got {tuple(outcomes.shape)}, {tuple(lengths.shape)}")
    rewards = outcomes.new_zeros(int(lengths.sum()), dtype=torch.float64)
    if kl is not None and beta:
        rewards -= beta * kl.detach().double()
    rewards[lengths.cumsum(0) - 1] += outcomes.detach().double()
    return rewards


def discounted_returns(rewards: Tensor, lengths: Tensor, *, gamma: float) -> Tensor:
    """[N] `G_t = sum_{k >= t} gamma^(k - t) r_k` in each completion; with gamma = 1 the advantage of REINFORCE++."""
    return gae(rewards, torch.zeros_like(rewards), lengths, gamma=gamma, lam=1.0)[0]


def gae(rewards: Tensor, values: Tensor, lengths: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438, Eq. 16), each completion an episode that ends:

        delta_t = r_t + gamma V_{t+1} - V_t,  V = 0 after the last token
        A_t = delta_t + gamma lam A_{t+1}
        return_t = A_t + V_t, what the value function is fitted to: the TD(lam) return

    lam = 1 gives the discounted return minus V_t, lam = 0 the one-step error. A truncated completion ends like any
    other: nothing is bootstrapped beyond its last token. rewards and values (V of the state before each token): [N];
    lengths: [B]. Returns advantages, neither centred nor scaled, and returns: [N], detached, at least float32.
    """
    for name, value in (("gamma", gamma), ("lam", lam)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {value}")
    if rewards.shape != values.shape:
        raise ValueError(f"rewards and values must both be [N], got {tuple(rewards.shape)} and {tuple(values.shape)}")
    _require_lengths(lengths, len(rewards))
    dtype = torch.promote_types(at_least_float32(rewards).dtype, values.dtype)
    rewards, values = rewards.detach().to(dtype), values.detach().to(dtype)
    # [B, T] with padding on the right: zeros there leave the recursion at 0 until the last token.
    mask = torch.arange(int(lengths.max()), device=rewards.device) < lengths[:, None]
    padded_rewards = rewards.new_zeros(mask.shape).masked_scatter_(mask, rewards)
    padded_values = rewards.new_zeros(mask.shape[0], mask.shape[1] + 1)
    padded_values[:, :-1].masked_scatter_(mask, values)
    deltas = padded_rewards + gamma * padded_values[:, 1:] - padded_values[:, :-1]
    advantages = torch.zeros_like(deltas)
    following = torch.zeros_like(deltas[:, 0])
    for t in range(mask.shape[1] - 1, -1, -1):
        following = deltas[:, t] + gamma * lam * following
        advantages[:, t] = following
    flat = advantages[mask]
    return flat, flat + values


def _require_lengths(lengths: Tensor, num_tokens: int) -> None:
    if lengths.ndim != 1 or (lengths < 1).any() or int(lengths.sum()) != num_tokens:
        raise ValueError(f"lengths must be [B], each at least 1, with sum {num_tokens}; got {lengths.tolist()}")
