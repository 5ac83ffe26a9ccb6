"""Compares two evaluations of one benchmark question by question: the second minus the first.

    python docs/examples/compare_evaluations.py evals/NAME/MODEL-1 evals/NAME/MODEL-2 [questions.csv]

The unit is the question: 95 % t-intervals of paired differences, with pseudo-questions of the weight of two added, half
of that at 0 and a quarter at each of -1 and 1 (Agresti and Min 2005, for matched pairs), so that two models that agree
everywhere still get an interval; p by sign flips of the questions that differ. Left out: cons@n.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

FLIPS = 100_000
"""All flips up to 16 questions, random ones beyond."""


def interval(differences: np.ndarray) -> tuple[float, float]:
    """95 % t-interval of the mean of paired differences of shares, in [-1, 1]."""
    n = len(differences) + 2
    mean = float(np.sum(differences)) / n
    variance = (float(np.sum(differences**2)) + 1.0 - n * mean**2) / (n - 1)  # the quarters give 0.5 * 1 + 0.5 * 1
    half = float(stats.t.ppf(0.975, n - 1)) * (variance / n) ** 0.5
    return max(-1.0, mean - half), min(1.0, mean + half)


def flip_p(differences: np.ndarray) -> float:
    """Two-sided p of the mean difference under sign flips; 1 where nothing differs."""
    changed = differences[differences != 0]
    if len(changed) < 2:
        return 1.0
    settings = {"permutation_type": "samples", "n_resamples": FLIPS, "batch": 2_000, "rng": 0}
    return float(stats.permutation_test((changed,), np.mean, **settings).pvalue)


def by_question(folder: str, column: str) -> pd.Series:
    """The mean of a column over the samples of each question that have a verdict.

    A folder also keeps samples of questions as they were before an edit; evaluation.json has the present ones.
    """
    table = pd.read_parquet(Path(folder) / "samples.parquet")
    file = Path(folder) / "evaluation.json"
    if file.is_file() and (present := json.loads(file.read_text(encoding="utf-8")).get("questions")):
        table = table[table["problem_id"].map(present) == table["question_digest"]]
    return table[~(table["timed_out"] | table["failed"])].groupby("problem_id")[column].mean()


def main(arguments: Sequence[str]) -> None:
    first, second, *files = arguments
    for column in ("correct", "truncated"):
        before, after = (by_question(folder, column) for folder in (first, second))
        if set(before.index) != set(after.index):
            raise SystemExit("the two evaluations are on different questions; evaluate both with the same limit")
        table = pd.DataFrame({first: before, second: after})
        d = (table[second] - table[first]).to_numpy()
        low, high = interval(d)
        print(
            f"{column}: {d.mean():+.3f} [{low:+.3f}, {high:+.3f}], better on {(d > 0).sum()}, worse on "
            f"{(d < 0).sum()}, equal on {(d == 0).sum()} of {len(d)} questions, p = {flip_p(d):.3g}"
        )
        if files and column == "correct":
            table.assign(difference=d).sort_values("difference", kind="stable").to_csv(files[0])


if __name__ == "__main__":
    main(sys.argv[1:])
