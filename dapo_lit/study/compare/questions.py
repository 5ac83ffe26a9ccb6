"""Uncertainty from the questions and from sampling answers, kept apart from the uncertainty over training seeds.

More seeds do not shrink the first, more questions not the last: the report prints all three.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from dapo_lit.study.compare.statistics import Estimate, per_base, t_interval


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


def score_array(tables: Sequence[pd.DataFrame]) -> np.ndarray:
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
