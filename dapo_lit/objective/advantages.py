"""Advantages: group-relative (DAPO Eq. 9), leave-one-out, discounted returns, GAE, and the whitening of a batch.

Group-relative and leave-one-out have no discount: every token of a completion gets the completion's advantage. Returns
and GAE take flat tensors, whose completions follow one another in the order of `lengths`.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from dapo_lit.objective.needs import Needs
from dapo_lit.objective.tokens import at_least_float32

_ROUNDING_STEPS = 4
"""Rewards that differ by at most this many units in the last place are equal: `1.0 - 0.7` against `0.3`."""


@Needs(group=2, on_page=True)
def group_advantages(
    rewards: Float[Tensor, "P G"], *, scale_by_std: bool = True, epsilon: float = 1e-6
) -> Float[Tensor, "P G"]:
    """DAPO Eq. 9: `A_i = (R_i - mean(R_1..R_G)) / (std(R_1..R_G) + epsilon)`, for each prompt on its own.

    rewards: after shaping, G >= 2. Computed in float64; returns float32 or the wider dtype of `rewards`, detached. A
    group whose rewards are all equal, up to float rounding, gets exactly 0. Completions without loss belong in
    `rewards` too: leaving them out would move the mean and the std of the others.

    `scale_by_std=False` leaves out the division (Dr. GRPO, arXiv 2503.20783). The squared deviations
    are divided by G - 1, as in torch and in the authors' code. `epsilon` is in the unit of the rewards; the authors'
    code has 1e-6, the paper no number.

    >>> group_advantages(torch.tensor([[1.0, 0.0, -1.0]]), epsilon=0.0)
    tensor([[ 1.,  0., -1.]])
    """
    result_dtype = at_least_float32(rewards).dtype
    # Float64: equal rewards such as 0.1 must cancel to far below what the division could blow up.
    values = rewards.detach().double()
    deviation = values - values.mean(dim=1, keepdim=True)
    if scale_by_std:
        std = values.std(dim=1, keepdim=True)
        advantages = deviation / (std + epsilon)
    else:
        advantages = deviation
    # Rounding alone makes a std of about 1e-8, which the division would blow up to visible advantages.
    spread = values.amax(dim=1, keepdim=True) - values.amin(dim=1, keepdim=True)
    rounding = _ROUNDING_STEPS * torch.finfo(result_dtype).eps * values.abs().amax(dim=1, keepdim=True)
    return advantages.masked_fill(spread <= rounding, 0.0).to(result_dtype)


@Needs(group=2, on_page=True)
def leave_one_out_advantages(rewards: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
    """RLOO (arXiv 2402.14740, section 2.2): `A_i = R_i - mean of the other G - 1 rewards of the prompt`.

    Unbiased, because the baseline does not contain the completion's own reward. It is G / (G - 1) times the centred
    reward of Dr. GRPO. Takes and returns what `group_advantages` does; in the unit of the rewards.

    >>> leave_one_out_advantages(torch.tensor([[1.0, 0.0, -1.0]]))
    tensor([[ 1.5000,  0.0000, -1.5000]])
    """
    centred = group_advantages(rewards, scale_by_std=False)
    return centred * (rewards.shape[1] / (rewards.shape[1] - 1))


def whiten(advantages: Float[Tensor, "N"], mask: Bool[Tensor, "N"], *, epsilon: float = 1e-8) -> Float[Tensor, "N"]:
    """`(A - mean) / sqrt(var + epsilon)` over the tokens in `mask`: global-batch normalisation (arXiv 2501.03262).

    Call it with all tokens of all ranks. The variance divides by the number of tokens - 1, as in verl and TRL. Tokens
    outside the mask are shifted and scaled by the same numbers. All 0 if the tokens in the mask are equal up to
    rounding, or fewer than two. Detached, float32 or wider.
    """
    values = at_least_float32(advantages.detach())
    chosen = values[mask.bool()].double()
    if len(chosen) < 2:
        return torch.zeros_like(values)
    spread, size = chosen.max() - chosen.min(), chosen.abs().max()
    if spread <= _ROUNDING_STEPS * torch.finfo(values.dtype).eps * size:
        return torch.zeros_like(values)
    return ((values.double() - chosen.mean()) / (chosen.var() + epsilon).sqrt()).to(values.dtype)


def token_rewards(
    outcomes: Float[Tensor, "B"],
    kl: Float[Tensor, "N"] | None,
    lengths: Int[Tensor, "B"],
    *,
    beta: float,
    turns: Float64[Tensor, "N"] | None = None,
) -> Float64[Tensor, "N"]:
    """`r_t = outcome at the last token - beta * kl_t` (InstructGPT, arXiv 2203.02155, Eq. 2; REINFORCE++).

    outcomes: reward of each completion. kl: penalty of each token in nats; None: no penalty. turns: of these rewards,
    what belongs to a token before the last one, where a turn ended (as in SkyRL, docs/tutorials/new_env); the last
    token has the rest. None: nothing.

    >>> token_rewards(torch.tensor([1.0]), torch.tensor([0.5, 0.0, 0.25]), torch.tensor([3]), beta=0.1)
    tensor([-0.0500,  0.0000,  0.9750], dtype=torch.float64)
    >>> early = torch.tensor([0.0, 0.5, 0.0, 0.0], dtype=torch.float64)
    >>> token_rewards(torch.tensor([1.5]), None, torch.tensor([4]), beta=0.0, turns=early)
    tensor([0.0000, 0.5000, 0.0000, 1.0000], dtype=torch.float64)
    """
    rewards = outcomes.new_zeros(int(lengths.sum()), dtype=torch.float64)
    if kl is not None and beta:
        rewards -= beta * kl.detach().double()
    # At the last token, where the verdict is known.
    rewards[lengths.cumsum(0) - 1] += outcomes.detach().double()
    if turns is not None:
        of_token = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
        rewards += turns
        rewards[lengths.cumsum(0) - 1] -= turns.new_zeros(len(lengths)).index_add_(0, of_token, turns)
    return rewards


def discounted_returns(rewards: Float[Tensor, "N"], lengths: Int[Tensor, "B"], *, gamma: float) -> Float[Tensor, "N"]:
    """`G_t = sum_{k >= t} gamma^(k - t) r_k` in each completion; with gamma = 1 the advantage of REINFORCE++."""
    return gae(rewards, torch.zeros_like(rewards), lengths, gamma=gamma, lam=1.0)[0]


def gae(
    rewards: Float[Tensor, "N"], values: Float[Tensor, "N"], lengths: Int[Tensor, "B"], *, gamma: float, lam: float
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
    """Generalised advantage estimation (arXiv 1506.02438, Eq. 16), each completion an episode that ends:

        delta_t = r_t + gamma V_{t+1} - V_t,  V = 0 after the last token
        A_t = delta_t + gamma lam A_{t+1}
        return_t = A_t + V_t, what the value function is fitted to: the TD(lam) return

    lam = 1 gives the discounted return minus V_t, lam = 0 the one-step error. A truncated completion ends like any
    other: nothing is bootstrapped beyond its last token. values: V of the state before each token. Returns advantages,
    neither centred nor scaled, and returns; detached, at least float32.
    """
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
    # A loop over time on [B] vectors: a completion needs what follows, and all B go together.
    for t in range(mask.shape[1] - 1, -1, -1):
        following = deltas[:, t] + gamma * lam * following
        advantages[:, t] = following
    flat = advantages[mask]
    return flat, flat + values


ESTIMATORS: dict[str, Callable[..., Any]] = {
    "group": group_advantages,
    "leave_one_out": leave_one_out_advantages,
    "returns": discounted_returns,
    "gae": gae,
}
"""By the value of `advantage.estimator`."""
