"""Losses of one token that need nothing but the token: REINFORCE and CISPO. PPO's clip stands in losses.py."""

from torch import Tensor

from dapo_lit.objective.losses import at_least_float32, importance_ratio


def reinforce_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    """`-A log pi(token)` (Williams 1992; what RLOO, arXiv 2402.14740, minimises): no ratio and no clip.

    Right on policy alone: with several updates a step, the later ones see samples of an older policy uncorrected.

    Args:
        logprobs: log-probabilities (nats) of the sampled tokens under the policy being trained, any shape.
        old_logprobs: not used; every token loss takes the same three tensors.
        advantages: of each token, broadcastable with `logprobs`.

    Returns:
        The loss of each token, float32 or wider. Its value means little, its gradient is that of the expected reward.
    """
    return -at_least_float32(advantages) * at_least_float32(logprobs)


def cispo_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """CISPO (MiniMax-M1, arXiv 2506.13585, Eq. 4 and 5): `-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log pi`.

    The clipped ratio weighs REINFORCE and is itself constant (sg), so that every token keeps a gradient: where PPO's
    clip drops a token, CISPO bounds its weight. The paper has no lower bound, which is clip_low = 1 here.

    Args:
        logprobs: log-probabilities (nats) of the sampled tokens under the policy being trained, any shape.
        old_logprobs: the same under the policy before the update, broadcastable with `logprobs`.
        advantages: of each token, broadcastable with `logprobs`.
        clip_low: in [0, 1].
        clip_high: at least 0.

    Returns:
        The loss of each token, float32 or wider.

    Raises:
        ValueError: a bound outside its range.
    """
    if not 0 <= clip_low <= 1 or clip_high < 0:
        raise ValueError(f"clip_low must lie in [0, 1] and clip_high be at least 0, got {clip_low} and {clip_high}")
    weight = importance_ratio(logprobs, old_logprobs).detach().clamp(1 - clip_low, 1 + clip_high)
    return -weight * at_least_float32(advantages) * at_least_float32(logprobs)
