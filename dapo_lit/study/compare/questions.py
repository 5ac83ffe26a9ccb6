"""Questions as the unit: intervals of a benchmark's accuracy, and two models compared on the same questions.

More samples make a question's mean exact and say nothing about other questions: 30 problems with 32 samples each are
30 values, not 960. The intervals are Student's over question means, with pseudo-questions added as Agresti and Coull
(1998) do for proportions: one that is always wrong and one that is always right. Without them 30 wrong questions would
give the interval [0, 0], and skewed means of few questions intervals that are too short. A percentile bootstrap over
few questions has both faults.

A table of samples has one row per sample (`problem_id`, `sample_index`, `correct`, `num_tokens`, `truncated`) and the
same number of samples of every question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from dapo_lit.pass_at_k import pass_at_k
from dapo_lit.study.compare.statistics import Array, Estimate, sign_flip_p, t_interval

if TYPE_CHECKING:
    import pandas as pd

FLIPS = 100_000
"""Random sign flips where there are too many questions for all of them."""
EXACT_QUESTIONS = 44


def share_interval(values: Sequence[float] | Array) -> Estimate:
    """Mean of question values in [0, 1], and its interval with two pseudo-questions (0 and 1), cut to [0, 1].

    The mean is that of the questions alone. One question gives [0, 1].

    >>> share_interval([0.0] * 30).high  # 1/32 + 2.040 * 0.1768 / sqrt(32)
    0.0949...

    Raises ValueError: there is no value, or one is outside [0, 1].
    """
    x = np.asarray(values, dtype=float)
    if len(x) == 0 or not np.all((x >= 0) & (x <= 1)):
        raise ValueError(f"an interval of a share needs values in [0, 1], got {x.tolist()}")
    wide = t_interval(np.concatenate([x, [0.0, 1.0]]))
    assert wide.low is not None
    assert wide.high is not None
    sd = float(np.std(x, ddof=1)) if len(x) > 1 else None
    return Estimate(float(np.mean(x)), max(0.0, wide.low), min(1.0, wide.high), len(x), sd)


def difference_interval(differences: Sequence[float] | Array) -> Estimate:
    """Mean of paired differences of shares, in [-1, 1], and its interval.

    Pseudo-questions with the weight of two are added, half of that at 0, a quarter at each of -1 and 1: Agresti and
    Min (2005) for matched pairs. Two models that agree on all of 30 questions still get an interval.

    Raises ValueError: there is no value, or one is outside [-1, 1].
    """
    d = np.asarray(differences, dtype=float)
    if len(d) == 0 or not np.all(np.abs(d) <= 1):
        raise ValueError(f"an interval of a difference of shares needs values in [-1, 1], got {d.tolist()}")
    n = len(d) + 2
    mean = float(np.sum(d)) / n
    variance = (float(np.sum(d**2)) + 1.0 - n * mean**2) / (n - 1)  # the quarters give 0.5 * 1 + 0.5 * 1
    half = float(stats.t.ppf(0.975, n - 1)) * (variance / n) ** 0.5
    sd = float(np.std(d, ddof=1)) if len(d) > 1 else None
    return Estimate(float(np.mean(d)), max(-1.0, mean - half), min(1.0, mean + half), len(d), sd)


@dataclass(frozen=True)
class PairedQuestions:
    """Two models on the same questions."""

    difference: Estimate
    """Of the second minus the first."""
    better: int
    """Questions on which the second has the higher mean."""
    worse: int
    equal: int
    p: float
    """Two-sided, of the mean difference under sign flips; exact up to 44 questions, else from 100,000 flips."""


def compare_questions(first: Sequence[float] | Array, second: Sequence[float] | Array) -> PairedQuestions:
    """Compares values in [0, 1] of the same questions in the same order.

    Raises ValueError: the numbers of questions differ or are 0.
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if a.shape != b.shape:
        raise ValueError(f"paired questions need the same questions, got {len(a)} and {len(b)}")
    d = b - a
    return PairedQuestions(
        difference=difference_interval(d),
        better=int(np.sum(d > 0)),
        worse=int(np.sum(d < 0)),
        equal=int(np.sum(d == 0)),
        p=_flip_p(d),
    )


def _flip_p(differences: Array) -> float:
    changed = differences[differences != 0]  # a sign changes nothing at 0
    if len(changed) == 0:
        return 1.0
    if len(changed) <= EXACT_QUESTIONS:
        return sign_flip_p(changed)
    rng = np.random.default_rng(0)
    limit = abs(float(np.sum(changed))) * (1 - 1e-12)
    above = 0
    for start in range(0, FLIPS, 2_000):
        signs = rng.integers(0, 2, (min(2_000, FLIPS - start), len(changed)), dtype=np.int8) * 2 - 1
        above += int(np.sum(np.abs(signs @ changed) >= limit))
    return (above + 1) / (FLIPS + 1)  # the observed signs are one of the flips: never 0


def by_question(table: pd.DataFrame, column: str) -> np.ndarray:
    """A column's values [questions, samples], questions in the order they first occur.

    Raises ValueError: the questions have different numbers of samples.
    """
    groups = [group[column].to_numpy(dtype=float) for _, group in table.groupby("problem_id", sort=False)]
    if len({len(values) for values in groups}) != 1:
        raise ValueError("questions have different numbers of samples")
    return np.stack(groups)


def pass_curve(correct: np.ndarray) -> np.ndarray:
    """Unbiased pass@k [questions, k = 1..n] from 0/1 outcomes [questions, n]."""
    n = correct.shape[1]
    return np.array([[pass_at_k(n, int(row.sum()), k) for k in range(1, n + 1)] for row in correct])


def summary(table: pd.DataFrame, consensus: Sequence[float]) -> dict[str, Estimate]:
    """The table that the command prints: avg@n, pass@k for k = 1, 2, 4, ... and n, cons@n, length and truncation.

    consensus: cons@n of each question.
    """
    correct = by_question(table, "correct")
    n = correct.shape[1]
    passes = pass_curve(correct)
    rows = {f"avg@{n}": share_interval(correct.mean(axis=1))}
    rows |= {f"pass@{k}": share_interval(passes[:, k - 1]) for k in doublings(n) if k > 1}
    rows[f"cons@{n}"] = share_interval(consensus)
    rows["length_mean"] = t_interval(by_question(table, "num_tokens").mean(axis=1))
    rows["truncated_frac"] = share_interval(by_question(table, "truncated").mean(axis=1))
    return rows


def doublings(n: int) -> list[int]:
    """1, 2, 4, ... below n, and n.

    >>> doublings(6)
    [1, 2, 4, 6]
    """
    return [k for k in (2**i for i in range(n.bit_length())) if k < n] + [n]
