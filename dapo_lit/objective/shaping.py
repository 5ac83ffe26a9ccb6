"""Answers that are too long (DAPO 3.4): a soft penalty, or a mask.

Both look only at a completion's length and whether it was cut off. Dynamic sampling and accuracy use correctness,
never the results of these functions.
"""

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from dapo_lit.objective.needs import Needs


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


@Needs(on_page=True)
def every_answer(correct: Bool[Tensor, "G"]) -> Float64[Tensor, "G"]:
    """1 for every answer, as Eq. 13 is printed.

    In a group whose answers are all wrong, correctness gives no advantage (Eq. 9), so that the penalty is all that is
    learned from it: short wrong answers are reinforced.
    """
    return torch.ones_like(correct, dtype=torch.float64)


@Needs(on_page=True)
def mixed_groups(correct: Bool[Tensor, "G"]) -> Float64[Tensor, "G"]:
    """1 in a group that has a right answer: one without has no advantages.

    >>> mixed_groups(torch.tensor([False, True])).tolist(), mixed_groups(torch.tensor([False, False])).tolist()
    ([1.0, 1.0], [0.0, 0.0])
    """
    return correct.double().amax().expand(len(correct))


@Needs(on_page=True)
def pass_rate(correct: Bool[Tensor, "G"]) -> Float64[Tensor, "G"]:
    """The group's share of right answers (prime-rl, pull request 2901): small where few are right.

    >>> pass_rate(torch.tensor([False, True])).tolist()
    [0.5, 0.5]
    """
    return correct.double().mean().expand(len(correct))


@Needs(on_page=True)
def right_answers(correct: Bool[Tensor, "G"]) -> Float64[Tensor, "G"]:
    """1 for right answers."""
    return correct.double()


@Needs(on_page=True)
def no_answer(correct: Bool[Tensor, "G"]) -> Float64[Tensor, "G"]:
    """0."""
    return torch.zeros_like(correct, dtype=torch.float64)


PENALTIES = {
    "all": every_answer,
    "mixed": mixed_groups,
    "pass_rate": pass_rate,
    "right": right_answers,
    "none": no_answer,
}
"""By the value of `overlong.punish`, whose answers the soft punishment of DAPO 3.4 is for: from the verdicts of a group
to the share of its length penalty that is added to each answer's reward."""


def overlong_filtering(truncated: Bool[Tensor, "B"]) -> Bool[Tensor, "B"]:
    """False for truncated completions, which carry no loss.

    Only the loss is masked: a filtered completion stays in its group, so in the mean and std of Eq. 9.
    """
    return ~truncated  # DAPO 3.4 overlong filtering
