"""A comparison over the steps of training: the paired difference of arms with its interval."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy import stats

from dapo_lit.study.compare.contrasts import Contrast
from dapo_lit.study.compare.statistics import per_base
from dapo_lit.study.read.curves import curve
from dapo_lit.study.read.runs import Runs


def paired_differences(runs: Runs, contrast: Contrast, key: str, smooth: int = 1) -> pd.DataFrame:
    """A comparison's value at every step that all its runs of a seed logged [steps, seeds]; empty without a pair.

    Args:
        smooth: rows of a centred moving mean, taken over each run before the difference.
    """
    cells = {(run.arm, run.seed): run for run in runs if run.usable and not run.spoilt(key)}
    columns: dict[int, pd.Series] = {}
    for seed in runs.seeds:
        arms = [(weight, cells.get((arm, seed))) for arm, weight in contrast.weights.items()]
        parts = [weight * curve(run, key, "step", smooth) for weight, run in arms if run]
        if len(parts) == len(arms) and all(len(part) for part in parts):
            table = pd.concat(parts, axis=1, join="inner")
            if len(table):
                columns[seed] = table.sum(axis=1)
    return pd.DataFrame(columns)


def difference_band(differences: pd.DataFrame, base_of: Mapping[int, str] | None = None) -> pd.DataFrame:
    """Mean difference over bases at each step with its pointwise 95 % t-interval: columns x, mean, low, high, n.

    Steps that some pair lacks are left out.
    """
    whole = differences.dropna()
    if whole.empty:
        return pd.DataFrame({name: [] for name in ("x", "mean", "low", "high", "n")}, dtype=float)
    bases = [(base_of or {}).get(int(seed), str(seed)) for seed in whole.columns]
    values = per_base(whole.to_numpy(dtype=float).T, bases)
    n, mean = len(values), values.mean(axis=0)
    half = np.full(len(whole), np.nan)
    if n > 1:
        half = stats.t.ppf(0.975, n - 1) * values.std(axis=0, ddof=1) / n**0.5
    places = whole.index.to_numpy(dtype=float)
    return pd.DataFrame({"x": places, "mean": mean, "low": mean - half, "high": mean + half, "n": n})
