"""One evaluation as numbers by question, and its two curves: accuracy by number of samples, and by token budget.

A table has one row per sample (`problem_id`, `sample_index`, `correct`, `num_tokens`, `truncated`) and the same number
of samples of every question.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dapo_lit.pass_at_k import pass_at_k
from dapo_lit.study.compare.questions import share_interval
from dapo_lit.study.compare.statistics import Estimate, t_interval
from dapo_lit.study.figures.drawing import save
from dapo_lit.study.figures.style import PETROFF6, draw_band, new_figure, title

BUDGETS = 24
"""Points of the curve over token budgets."""


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


def summary(table: pd.DataFrame, consensus: Sequence[Sequence[float]]) -> dict[str, Estimate]:
    """The table that the command prints: avg@n, pass@k for k = 1, 2, 4, ... and n, cons@n, length and truncation.

    consensus: cons@k of each question, k = 1..n, in the order of the table.
    """
    correct = by_question(table, "correct")
    n = correct.shape[1]
    passes = pass_curve(correct)
    rows = {f"avg@{n}": share_interval(correct.mean(axis=1))}
    rows |= {f"pass@{k}": share_interval(passes[:, k - 1]) for k in doublings(n) if k > 1}
    rows[f"cons@{n}"] = share_interval([curve[-1] for curve in consensus])
    rows["length_mean"] = t_interval(by_question(table, "num_tokens").mean(axis=1))
    rows["truncated_frac"] = share_interval(by_question(table, "truncated").mean(axis=1))
    return rows


def doublings(n: int) -> list[int]:
    """1, 2, 4, ... below n, and n.

    >>> doublings(6)
    [1, 2, 4, 6]
    """
    return [k for k in (2**i for i in range(n.bit_length())) if k < n] + [n]


def samples_curve(table: pd.DataFrame, consensus: Sequence[Sequence[float]]) -> pd.DataFrame:
    """A row for each k = 1..n: tokens a question, pass@k and cons@k with intervals.

    cons@k is the mean over all subsets of k samples, as unbiased as pass@k; cons@1 is avg@n.
    """
    passes = pass_curve(by_question(table, "correct"))
    votes = np.asarray(consensus, dtype=float)
    length = float(table["num_tokens"].mean())
    rows = []
    for k in range(1, passes.shape[1] + 1):
        row: dict[str, float | None] = {"samples": k, "tokens": k * length}
        for name, values in (("pass", passes[:, k - 1]), ("cons", np.clip(votes[:, k - 1], 0, 1))):
            estimate = share_interval(values)
            row |= {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        rows.append(row)
    return pd.DataFrame(rows)


def budget_curve(table: pd.DataFrame) -> pd.DataFrame:
    """Accuracy had responses been cut at a budget of tokens: a response counts if it is right and not longer.

    Responses are sampled token by token, so those that end within the budget are the same under any larger limit. One
    that states its answer before it is cut would count under a smaller limit and does not count here.
    """
    lengths, correct = by_question(table, "num_tokens"), by_question(table, "correct")
    rows = []
    for budget in np.unique(np.ceil(np.geomspace(max(1.0, lengths.min()), lengths.max(), BUDGETS)).astype(int)):
        within = lengths <= budget
        estimate = share_interval((correct * within).mean(axis=1))
        tokens = float(np.minimum(lengths, budget).mean())
        rows.append((int(budget), estimate.mean, estimate.low, estimate.high, float(within.mean()), tokens))
    return pd.DataFrame(rows, columns=["budget", "accuracy", "low", "high", "within", "tokens"])


def plot_curves(samples: pd.DataFrame, budgets: pd.DataFrame, name: str, stem: Path) -> list[Path]:
    """Two panels with the intervals as bands; writes stem.png."""
    figure, axes = new_figure(1, 2)
    left, right = axes[0]
    marked = [k - 1 for k in doublings(len(samples))]
    for key, colour, dash, marker in (("pass", PETROFF6[0], "-", "o"), ("cons", PETROFF6[2], "--", "s")):
        draw_band(left, samples["samples"], samples[f"{key}_low"], samples[f"{key}_high"], colour)
        look: dict[str, Any] = {"color": colour, "ls": dash, "marker": marker}
        left.plot(samples["samples"], samples[key], **look, ms=3, label=f"{key}@k", markevery=marked)
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter("{x:.0f}")
    title(left, f"{name}: by number of samples", "share of questions", "samples k (95 % interval over questions)")
    draw_band(right, budgets["budget"], budgets["low"], budgets["high"], PETROFF6[0])
    right.plot(budgets["budget"], budgets["accuracy"], color=PETROFF6[0], marker="o", ms=2.5, label="accuracy")
    right.plot(budgets["budget"], budgets["within"], color=PETROFF6[4], ls=":", label="responses within the budget")
    title(right, "by token budget", "share", "tokens a response may take")
    for panel in (left, right):
        panel.legend(fontsize=7.5)
        panel.set_ylim(0, 1)
    return save(figure, stem)
