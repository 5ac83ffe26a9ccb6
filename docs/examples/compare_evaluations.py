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
from typing import Any

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


def opened(folder: str) -> tuple[dict[str, Any], pd.DataFrame]:
    """evaluation.json, {} where there is none, and the samples of its questions.

    A folder also keeps samples of questions as they were before an edit; evaluation.json has the present ones.
    """
    file, table = Path(folder) / "evaluation.json", pd.read_parquet(Path(folder) / "samples.parquet")
    record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if present := record.get("questions"):
        table = table[table["problem_id"].map(present) == table["question_digest"]]
    return record, table


def protocol(record: dict[str, Any]) -> dict[str, Any]:
    """What two evaluations should have in common, in one mapping."""
    sampling = {f"sampling.{key}": value for key, value in record.get("sampling", {}).items()}
    template = {"template": record.get("benchmark", {}).get("template")}
    return {**sampling, **template, **{key: record.get(key) for key in ("rule", "extraction")}}


def check_comparable(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Prints in what two protocols differ. Raises SystemExit: there is another question under an id."""
    one, two = protocol(before), protocol(after)
    for key in [key for key in {**one, **two} if one.get(key) != two.get(key)]:
        print(f"the protocols differ: {key} is {one.get(key)} and {two.get(key)}")
    questions = before.get("questions", {}), after.get("questions", {})
    edited = [name for name in questions[0] if questions[0][name] != questions[1].get(name, questions[0][name])]
    # A digest is of the tokens of a prompt: what else decides these differs between models.
    same_prompts = one["template"] == two["template"] and all(
        before.get(key) == after.get(key) for key in ("inputs", "prompt_date")
    )
    if edited and same_prompts:
        raise SystemExit(
            f"{len(edited)} questions or reference answers differ between the two, such as {edited[0]}; run the same "
            "evaluate commands again, which sample what has changed"
        )
    if edited:
        print(
            f"the prompts of {len(edited)} questions differ (template, tokenizer or date): whether questions were "
            "edited is not known"
        )


def by_question(table: pd.DataFrame, column: str) -> pd.Series:
    """The mean of a column over the samples of each question that have a verdict; NaN where none has."""
    judged = table[~(table["timed_out"] | table["failed"])]
    return judged.groupby("problem_id")[column].mean().reindex(sorted(table["problem_id"].unique()))


def main(arguments: Sequence[str]) -> None:
    first, second, *files = arguments
    (before, samples), (after, others) = opened(first), opened(second)
    check_comparable(before, after)
    if set(samples["problem_id"]) != set(others["problem_id"]):
        raise SystemExit("the two evaluations are on different questions; evaluate both with the same limit")
    for column in ("correct", "truncated"):
        every = pd.DataFrame({first: by_question(samples, column), second: by_question(others, column)})
        table = every.dropna()
        if column == "correct" and len(table) < len(every):
            print(f"{len(every) - len(table)} of {len(every)} questions have no verdict in one of the two; left out")
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
