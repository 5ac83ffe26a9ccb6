"""Questions as the unit: intervals of a benchmark's accuracy.

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
from typing import TYPE_CHECKING

import numpy as np

from dapo_lit.pass_at_k import pass_at_k
from dapo_lit.study.compare.statistics import Array, Estimate, t_interval

if TYPE_CHECKING:
    import pandas as pd


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


def by_question(table: pd.DataFrame, column: str) -> np.ndarray:
    """A column's values [questions, samples], questions in the order they first occur.

    Raises ValueError: the questions have different numbers of samples.
    """
    groups = [group[column].to_numpy(dtype=float) for _, group in table.groupby("problem_id", sort=False)]
    if len({len(values) for values in groups}) != 1:
        raise ValueError("questions have different numbers of samples")
    return np.stack(groups)


def summary(table: pd.DataFrame, consensus: Sequence[float]) -> dict[str, Estimate]:
    """The table that the command prints: avg@n, pass@k for k = 1, 2, 4, ... and n, cons@n, length and truncation.

    consensus: cons@n of each question.
    """
    correct = by_question(table, "correct")
    n = correct.shape[1]
    rows = {f"avg@{n}": share_interval(correct.mean(axis=1))}
    for k in doublings(n)[1:]:
        rows[f"pass@{k}"] = share_interval([pass_at_k(n, int(right), k) for right in correct.sum(axis=1)])
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
