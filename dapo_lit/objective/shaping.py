"""Answers that are too long (DAPO 3.4): a soft penalty, or a mask.

Both look only at a completion's length and whether it was cut off. Dynamic sampling and accuracy use correctness,
never the results of these functions.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

Punished = Literal["all", "mixed", "pass_rate", "right", "none"]
"""Whose length penalty counts, and how much of it: `punished`."""


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


def punished(correct: Bool[Tensor, "G"], punish: Punished) -> Float64[Tensor, "G"]:
    """The share of its length penalty that is added to each answer's reward, for the answers of one group.

    correct: the verdicts of the group.
    punish: "all", as Eq. 13 is printed: 1 for every answer; "mixed": 1 in a group that has a right answer; "pass_rate":
        the group's share of right answers (prime-rl, pull request 2901); "right": 1 for right answers; "none": 0.

    In a group whose answers are all wrong, correctness gives no advantage (Eq. 9), so that under "all" the penalty is
    all that is learned from it: short wrong answers are reinforced. "mixed" leaves such a group without advantages;
    "pass_rate" does so too, and is small where right answers are few.

    >>> wrong, mixed = torch.tensor([[False, False], [False, True]])
    >>> [punished(group, "mixed").tolist() for group in (wrong, mixed)]
    [[0.0, 0.0], [1.0, 1.0]]
    >>> [punished(group, "pass_rate").tolist() for group in (wrong, mixed)]
    [[0.0, 0.0], [0.5, 0.5]]
    """
    right = correct.double()
    match punish:  # DAPO 3.4 soft overlong punishment: which answers it is for
        case "all":
            return torch.ones_like(right)
        case "mixed":
            return right.amax().expand_as(right)
        case "pass_rate":
            return right.mean().expand_as(right)
        case "right":
            return right
        case "none":
            return torch.zeros_like(right)


def overlong_filtering(truncated: Bool[Tensor, "B"]) -> Bool[Tensor, "B"]:
    """False for truncated completions, which carry no loss.

    Only the loss is masked: a filtered completion stays in its group, so in the mean and std of Eq. 9.
    """
    return ~truncated  # DAPO 3.4 overlong filtering
