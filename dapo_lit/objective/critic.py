"""The value function of PPO: its loss, and statistics of how good it is."""

import torch
from torch import Tensor

from dapo_lit.objective.diagnostics import Statistics
from dapo_lit.objective.losses import at_least_float32


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None) -> Tensor:
    """`max((V - R)^2, (V_clip - R)^2) / 2` with `V_clip = clip(V, V_old - clip, V_old + clip)`, for each token.

    The clip is not in the PPO paper but in its authors' code (arXiv 2005.12729, section 3). It is pessimistic: a value
    that has left the range on the far side of R keeps its gradient, one that overshoots towards R has none.

    Args:
        values: [N] of the value function being trained.
        old_values: [N] before the updates of the step.
        returns: [N] what is fitted to.
        clip: how far a value may move in a step, in the unit of the rewards; None for no clip.

    Returns:
        [N] float32 or wider, differentiable in `values`.

    Raises:
        ValueError: a clip that is not positive.
    """
    if clip is not None and clip <= 0:
        raise ValueError(f"clip must be positive, or None for no clip; got {clip}")
    values, old_values, returns = at_least_float32(values), old_values.detach(), returns.detach()
    squared = (values - returns).square()
    if clip is not None:
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        squared = torch.maximum(squared, (clipped - returns).square())
    return squared / 2


@torch.no_grad()
def critic_statistics(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, clip: float | None
) -> Statistics:
    """The sums behind `critic/*` over the tokens in `mask` [N], which add up over micro-batches, updates and ranks.

    Other arguments as in `clipped_value_loss`.
    """
    loss = clipped_value_loss(values, old_values, returns, clip=clip)
    unclipped = clipped_value_loss(values, old_values, returns, clip=None)
    chosen = mask.bool()
    kept = {
        "critic_loss": loss,
        "critic_clipped": (loss > unclipped).double(),
        "critic_value": old_values,
        "critic_return": returns,
        "critic_return_squared": returns.double().square(),
        "critic_error": returns.double() - old_values.double(),
        "critic_error_squared": (returns.double() - old_values.double()).square(),
    }
    # Masked by filling: selecting would make the host wait for the count.
    sums = {name: value.masked_fill(~chosen, 0).sum(dtype=torch.float64) for name, value in kept.items()}
    return Statistics({"critic_tokens": chosen.sum(dtype=torch.float64)} | sums, {})


def finish_critic(sums: dict[str, Tensor]) -> dict[str, float | None]:
    """`critic/*` from the reduced sums; None without a token.

    `critic/explained_variance` is `1 - Var(R - V_old) / Var(R)`: 1 for a perfect value function, 0 for a constant one,
    negative for one that is worse than a constant; None where the returns are all equal.
    """
    total = {name: float(value) for name, value in sums.items()}
    count = total.get("critic_tokens", 0.0)
    if not count:
        names = ("loss", "clip_frac", "value_mean", "return_mean", "explained_variance")
        return {f"critic/{name}": None for name in names}

    def variance(name: str) -> float:
        return total[f"{name}_squared"] / count - (total[name] / count) ** 2

    spread = variance("critic_return")
    # Equal returns leave a rounding of their square, not 0.
    negligible = spread <= 1e-12 * max(1.0, total["critic_return_squared"] / count)
    return {
        "critic/loss": total["critic_loss"] / count,
        "critic/clip_frac": total["critic_clipped"] / count,
        "critic/value_mean": total["critic_value"] / count,
        "critic/return_mean": total["critic_return"] / count,
        "critic/explained_variance": None if negligible else 1 - variance("critic_error") / spread,
    }
