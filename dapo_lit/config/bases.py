"""The resolver `base_of` of conf/: which base policy a seed starts from.

Bases and noise are crossed by taking the bases in turn: with three bases, seeds 0 to 11 are three bases with four noise
seeds each. All arms share a seed's base, so every pair lies within one.
"""

from collections.abc import Sequence

from omegaconf import OmegaConf


def base_of(bases: Sequence[int] | None, seed: int) -> int:
    """
    >>> [base_of([1, 3, 4], seed) for seed in range(5)], base_of([], 7)
    ([1, 3, 4, 1, 3], 7)
    """
    return int(bases[seed % len(bases)]) if bases else seed


OmegaConf.register_new_resolver("base_of", base_of, replace=True)
