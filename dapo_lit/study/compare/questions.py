"""Questions as the unit: intervals of benchmarks, and errors by source (training seeds, questions, sampled answers).

More samples make a question's mean exact and say nothing about other questions: 30 problems with 32 samples each are
30 values, not 960. The intervals are Student's over question means, with pseudo-questions added as Agresti and Coull
(1998) do for proportions: one that is always wrong and one that is always right. Without them 30 wrong questions would
give the interval [0, 0], and skewed means of few questions intervals that are too short. A percentile bootstrap over
few questions has both faults.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from dapo_lit.study.compare.decision import sign_flip_p
from dapo_lit.study.compare.statistics import Array, Estimate, per_base, t_interval

if TYPE_CHECKING:
    import pandas as pd  # `evaluate` starts without it

FLIPS = 100_000
"""Random sign flips where there are too many questions for all of them."""
EXACT_QUESTIONS = 44


@dataclass(frozen=True)
class ErrorParts:
    """Standard errors of an arm's mean accuracy, in share correct."""

    mean: float
    seeds: float | None
    """Spread of the seeds' accuracies on these questions / sqrt(seeds); None for one seed. Includes sampling."""
    questions: float | None
    """Spread over questions of the accuracy averaged over seeds / sqrt(questions): another set of such questions."""
    sampling: float | None
    """From k answers a question: sqrt(mean of p (1 - p)) / sqrt(answers), unbiased; None for one answer a question."""
    num_seeds: int
    num_questions: int
    num_samples: int


def error_parts(scores: np.ndarray) -> ErrorParts:
    """Decomposes 0/1 scores [seeds S, questions Q, samples K] of one arm.

    Raises:
        ValueError: the array has another number of axes or is empty.
    """
    if scores.ndim != 3 or scores.size == 0:
        raise ValueError(f"scores need axes [seeds, questions, samples], got shape {scores.shape}")
    seeds, questions, samples = scores.shape
    by_question = scores.mean(axis=2)
    by_seed = by_question.mean(axis=1)
    within = scores.var(axis=2, ddof=1).mean() if samples > 1 else None
    return ErrorParts(
        mean=float(scores.mean()),
        seeds=float(by_seed.std(ddof=1) / seeds**0.5) if seeds > 1 else None,
        questions=float(by_question.mean(axis=0).std(ddof=1) / questions**0.5) if questions > 1 else None,
        sampling=None if within is None else float((within / scores.size) ** 0.5),
        num_seeds=seeds,
        num_questions=questions,
        num_samples=samples,
    )


@dataclass(frozen=True)
class PairedLevels:
    """The difference of two arms with one and with two levels of uncertainty."""

    seeds: Estimate
    """Over base policies, for these questions."""
    both: Estimate
    """Over base policies and questions: for other questions of the kind as well."""
    evaluation_share: float | None
    """Share of the variance between bases that comes from sampling answers; None for one answer a question."""


def paired_levels(treated: np.ndarray, control: np.ndarray, bases: Sequence[str]) -> PairedLevels:
    """Compares 0/1 scores [seeds S, questions Q, samples K] of two arms at the same seeds.

    The variance over both is that over bases plus that over questions less that of single cells, which is in both
    (Cameron, Gelbach and Miller 2011). Arms draw the same noise, so answers are differenced sample by sample.

    Raises:
        ValueError: the arms were evaluated on other questions or with other numbers of answers.
    """
    if treated.shape != control.shape:
        raise ValueError(f"arms have different evaluations: {treated.shape} and {control.shape}")
    each = treated - control
    num_runs, num_questions, num_samples = each.shape
    cells = per_base(each.mean(axis=2), bases)
    num_units = len(cells)
    by_unit = cells.mean(axis=1)
    seeds = t_interval(by_unit)
    if seeds.low is None or seeds.sd is None:
        return PairedLevels(seeds, seeds, None)
    own = cells - by_unit[:, None]  # what questions add to a base
    of_questions = own.mean(axis=0).var(ddof=1) / num_questions
    of_cells = (own - own.mean(axis=0)).var(ddof=1) / own.size
    half = seeds.mean - seeds.low
    wide = half * (1 + max(of_questions - of_cells, 0.0) / (seeds.sd**2 / num_units)) ** 0.5 if seeds.sd else half
    both = replace(seeds, low=seeds.mean - wide, high=seeds.mean + wide)
    share = None
    if num_samples > 1 and seeds.sd:
        sampling = each.var(axis=2, ddof=1).mean() / (num_questions * num_samples * num_runs / num_units)
        share = float(min(1.0, sampling / seeds.sd**2))
    return PairedLevels(seeds, both, share)


def score_array(tables: Sequence["pd.DataFrame"]) -> np.ndarray:
    """Evaluation tables of the seeds of an arm as an array [S, Q, K], questions in the order of their ids.

    Raises:
        ValueError: the tables differ in their questions or in the answers a question has.
    """
    arrays, ids = [], None
    for table in tables:
        wide = table.pivot(index="problem_id", columns="sample_index", values="correct").sort_index()
        if wide.isna().to_numpy().any():
            raise ValueError("an evaluation has questions with fewer answers than others")
        if ids is not None and not wide.index.equals(ids):
            raise ValueError("evaluations of one arm are on different questions")
        ids = wide.index
        arrays.append(wide.to_numpy(dtype=float))
    if len({array.shape for array in arrays}) != 1:
        raise ValueError("evaluations have different numbers of answers a question")
    return np.stack(arrays)


def share_interval(values: Sequence[float] | Array, level: float = 0.95) -> Estimate:
    """Mean of question values in [0, 1], and its interval with two pseudo-questions (0 and 1), cut to [0, 1].

    The mean is that of the questions alone. One question gives [0, 1].

    >>> share_interval([0.0] * 30).high  # 1/32 + 2.040 * 0.1768 / sqrt(32)
    0.0949...

    Raises:
        ValueError: there is no value, or one is outside [0, 1].
    """
    x = np.asarray(values, dtype=float)
    if len(x) == 0 or not np.all((x >= 0) & (x <= 1)):
        raise ValueError(f"an interval of a share needs values in [0, 1], got {x.tolist()}")
    wide = t_interval(np.concatenate([x, [0.0, 1.0]]), level)
    assert wide.low is not None
    assert wide.high is not None
    sd = float(np.std(x, ddof=1)) if len(x) > 1 else None
    return Estimate(float(np.mean(x)), max(0.0, wide.low), min(1.0, wide.high), len(x), sd)


def difference_interval(differences: Sequence[float] | Array, level: float = 0.95) -> Estimate:
    """Mean of paired differences of shares, in [-1, 1], and its interval.

    Pseudo-questions with the weight of two are added, half of that at 0, a quarter at each of -1 and 1: Agresti and
    Min (2005) for matched pairs. Two models that agree on all of 30 questions still get an interval.

    Raises:
        ValueError: there is no value, or one is outside [-1, 1].
    """
    d = np.asarray(differences, dtype=float)
    if len(d) == 0 or not np.all(np.abs(d) <= 1):
        raise ValueError(f"an interval of a difference of shares needs values in [-1, 1], got {d.tolist()}")
    n = len(d) + 2
    mean = float(np.sum(d)) / n
    variance = (float(np.sum(d**2)) + 1.0 - n * mean**2) / (n - 1)  # the quarters give 0.5 * 1 + 0.5 * 1
    half = float(stats.t.ppf(0.5 + level / 2, n - 1)) * (variance / n) ** 0.5
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

    Raises:
        ValueError: the numbers of questions differ or are 0.
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
    moved = differences[differences != 0]  # a sign changes nothing at 0
    if len(moved) == 0:
        return 1.0
    if len(moved) <= EXACT_QUESTIONS:
        return sign_flip_p(moved)
    rng = np.random.default_rng(0)
    limit = abs(float(np.sum(moved))) * (1 - 1e-12)
    above = 0
    for start in range(0, FLIPS, 2_000):
        signs = rng.integers(0, 2, (min(2_000, FLIPS - start), len(moved)), dtype=np.int8) * 2 - 1
        above += int(np.sum(np.abs(signs @ moved) >= limit))
    return (above + 1) / (FLIPS + 1)  # the observed signs are one of the flips: never 0
