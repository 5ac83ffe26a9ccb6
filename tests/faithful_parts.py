"""DAPO's parts as a user writes them in a file of their own: the equivalence matrix holds them to the reference too."""

from torch import Tensor


def clip(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    ratio = (logprobs - old_logprobs).exp()
    return -(ratio * advantages).minimum(ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def group(rewards: Tensor, *, epsilon: float) -> Tensor:
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return centred / (rewards.std(dim=1, keepdim=True) + epsilon)


def in_part(correct: Tensor, *, share: float = 1.0) -> Tensor:
    return correct.double() * share


def icepop(old_logprobs: Tensor, rollout_logprobs: Tensor, *, low: float, high: float) -> Tensor:
    ratio = (old_logprobs - rollout_logprobs).exp()
    return ratio.where((ratio >= low) & (ratio <= high), 0.0)
