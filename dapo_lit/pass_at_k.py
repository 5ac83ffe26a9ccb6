"""Unbiased pass@k, for evaluations during training and for the tables of studies."""

from math import comb


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate of the probability that one of k samples is right (Chen et al. 2021, arXiv 2107.03374, Eq. 1).

    >>> pass_at_k(num_samples=4, num_correct=1, k=2)
    0.5
    """
    return 1 - comb(num_samples - num_correct, k) / comb(num_samples, k)
