"""A loss of one's own: `algorithm.loss=my_losses.soft_clip`."""

from torch import Tensor

from dapo_lit.objective.losses import importance_ratio


def soft_clip(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, width: float) -> Tensor:
    """`-A tanh((r - 1) / width) width`: bounded as PPO's clip is, without its corner."""
    return -advantages * ((importance_ratio(logprobs, old_logprobs) - 1) / width).tanh() * width
