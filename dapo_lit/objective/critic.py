"""The value function of PPO: its loss, and statistics of how good it is."""

import torch
from torch import Tensor

from dapo_lit.objective.tokens import Statistics, at_least_float32, total


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None
) -> tuple[Tensor, Statistics]:
    """`max((V - R)^2, (V_clip - R)^2) / 2` with `V_clip = clip(V, V_old - clip, V_old + clip)`, for each token.

    Values, old values (before the updates of the step) and returns are [n]; so is the loss, differentiable in `values`.
    The sums behind `critic/*` come with it. The clip is in the unit of the rewards; None: no clip. It is not in the PPO
    paper but in its authors' code (arXiv 2005.12729, section 3). It is pessimistic: a value that has left the range on
    the far side of R keeps its gradient, one that overshoots towards R has none.
    """
    values, old_values, returns = at_least_float32(values), old_values.detach(), returns.detach()
    unclipped = squared = (values - returns).square()
    if clip is not None:
        bounded = old_values + (values - old_values).clamp(-clip, clip)
        squared = torch.maximum(squared, (bounded - returns).square())
    loss = squared / 2
    with torch.no_grad():
        error = returns.double() - old_values.double()
        sums = {
            "critic_tokens": torch.ones_like(loss),
            "critic_loss": loss,
            "critic_clipped": squared > unclipped,
            "critic_value": old_values,
            "critic_return": returns,
            "critic_return_squared": returns.double().square(),
            "critic_error": error,
            "critic_error_squared": error.square(),
        }
    return loss, Statistics({name: total(value.detach()) for name, value in sums.items()}, {})


def finish_critic(statistics: Statistics) -> dict[str, float | None]:
    """`critic/*` from the reduced sums; None without a token.

    `critic/explained_variance` is `1 - Var(R - V_old) / Var(R)`: 1 for a perfect value function, 0 for a constant one,
    negative for one that is worse than a constant; None where the returns are all equal.
    """
    sums = {name: float(value) for name, value in statistics.sums.items()}
    count = sums.get("critic_tokens", 0.0)
    if not count:
        names = ("loss", "clip_frac", "value_mean", "return_mean", "explained_variance")
        return {f"critic/{name}": None for name in names}

    def variance(name: str) -> float:
        return sums[f"{name}_squared"] / count - (sums[name] / count) ** 2

    spread = variance("critic_return")
    # Equal returns leave a rounding of their square, not 0.
    negligible = spread <= 1e-12 * max(1.0, sums["critic_return_squared"] / count)
    return {
        "critic/loss": sums["critic_loss"] / count,
        "critic/clip_frac": sums["critic_clipped"] / count,
        "critic/value_mean": sums["critic_value"] / count,
        "critic/return_mean": sums["critic_return"] / count,
        "critic/explained_variance": None if negligible else 1 - variance("critic_error") / spread,
    }
