"""The resolver `base_of` of conf/: which base policy a seed starts from.

Seed 40 starts from base policy 40, with noise of its own: one seed a base, so that a study speaks of base policies. A
list of bases is taken in turn, so that seeds are nested in them. All arms of a seed share its base policy.
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
