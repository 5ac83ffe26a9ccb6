"""Coin flips instead of verdicts: a reward without information, so that whatever still moves is the optimiser's.

`reward.function=dapo_lit.rewards.coin_flip.reward` pays every sample 1 or the value of a wrong answer with equal
probability. The coin is a hash of the problem and the sample, never of the text: equal runs flip equal coins, and so do
the arms of a comparison for the samples that they share. Evaluation is scored by one coin for each problem.
"""

import hashlib
from collections.abc import Sequence

from dapo_lit.rewards.functions import RewardProblem


def reward(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[bool]:
    """One coin for each completion.

    >>> reward([RewardProblem("1+2", "1+2=", "3", sample=f"1/0/{index}") for index in range(4)], ["#3"] * 4)
    [False, False, False, False]
    """
    return [heads(f"{problem.id}|{problem.sample}") for problem in problems]


def heads(name: str) -> bool:
    return hashlib.blake2b(name.encode(), digest_size=1).digest()[0] % 2 == 1
