"""Answers that are too long (DAPO 3.4): a soft penalty, or a mask.

Both look only at a completion's length and whether it was cut off. Dynamic sampling and accuracy use correctness,
never the results of these functions.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

Punished = Literal["all", "mixed", "right", "none"]
"""The answers whose length penalty counts: `punished`."""


def soft_overlong_punishment(
    lengths: Int[Tensor, "B"], *, max_response_tokens: int, cache_tokens: int, factor: float = 1.0
) -> Float64[Tensor, "B"]:
    """DAPO Eq. 13, soft overlong punishment, to be added to the correctness reward of right and wrong answers alike.

    With L_max = `max_response_tokens` and L_cache = `cache_tokens`, a response of |y| tokens (EOS included) gets

        0                                    |y| <= L_max - L_cache
        ((L_max - L_cache) - |y|) / L_cache  L_max - L_cache < |y| <= L_max
        -1                                   L_max < |y|

    times `factor` (1 in the authors' code). L_max includes the cache: the paper's "expected maximum length" of 16,384
    tokens with a cache of 4,096 is L_max = 20,480. A generator that stops at L_max never reaches the third interval, so
    a cache of 0, which empties the second one, means no penalty.

    >>> soft_overlong_punishment(torch.tensor([16384, 18432, 20480]), max_response_tokens=20480, cache_tokens=4096)
    tensor([ 0.0000, -0.5000, -1.0000], dtype=torch.float64)
    """
    lengths = lengths.double()  # DAPO 3.4 soft overlong punishment
    # Else 0 / 0 at the limit itself.
    if cache_tokens == 0:
        share = (lengths > max_response_tokens).double()
    else:
        share = ((lengths - (max_response_tokens - cache_tokens)) / cache_tokens).clamp(0.0, 1.0)
    return 0.0 - factor * share  # not -factor * share, which is -0.0 for short answers


def punished(correct: Bool[Tensor, "G"], punish: Punished) -> Bool[Tensor, "G"]:
    """True for the answers of one group whose length penalty is added to their reward.

    correct: the verdicts of the group.
    punish: "all", as Eq. 13 is printed: every answer; "mixed": every answer of a group that has a right one; "right":
        right answers; "none".

    In a group whose answers are all wrong, correctness gives no advantage (Eq. 9), so that under "all" the penalty is
    all that is learned from it: short wrong answers are reinforced. "mixed" leaves such a group without advantages.

    >>> tuple(int(punished(torch.tensor(group), "mixed").sum()) for group in ([False, False], [False, True]))
    (0, 2)
    """
    match punish:  # DAPO 3.4 soft overlong punishment: which answers it is for
        case "all":
            return torch.ones_like(correct)
        case "mixed":
            return correct.any().expand_as(correct)
        case "right":
            return correct
        case "none":
            return torch.zeros_like(correct)


def overlong_filtering(truncated: Bool[Tensor, "B"]) -> Bool[Tensor, "B"]:
    """False for truncated completions, which carry no loss.

    Only the loss is masked: a filtered completion stays in its group, so in the mean and std of Eq. 9.
    """
    return ~truncated  # DAPO 3.4 overlong filtering
