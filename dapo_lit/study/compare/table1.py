"""The paper's Table 1 from the runs of a ladder: every rung with its interval and its increment, paired by seed."""

import pandas as pd

from dapo_lit.study.compare.statistics import t_interval
from dapo_lit.study.designs import ladder
from dapo_lit.study.read.outcomes import is_share, primary_metric, scores
from dapo_lit.study.read.runs import Runs

PAPER = dict(zip((arm.name for arm in ladder()), (30, 36, 38, 41, 42, 50), strict=True))
"""AIME 2024 avg@32 in percent, Qwen2.5-32B, one run each (arXiv 2503.14476, Table 1)."""


def table1(runs: Runs, key: str | None = None) -> pd.DataFrame:
    """A row an arm: the paper's number, mean and 95 % t-interval over n seeds; the rung's increment here and there.

    Shares are in percent, increments in points, paired by seed.

    Args:
        key: the metric; None: the first benchmark's avg@k.
    """
    name = key or primary_metric(runs)
    table, scale = scores(runs, name), 100 if is_share(name) else 1
    rungs = [arm.name for arm in ladder()]
    rows = {}
    for arm in (a for a in [*rungs, *(a for a in runs.arms if a not in rungs)] if table.get(a)):
        mean = t_interval([scale * value for value in table[arm].values()])
        row = {"paper": PAPER.get(arm), "mean": mean.mean, "low": mean.low, "high": mean.high, "n": mean.n}
        below = rungs[rungs.index(arm) - 1] if arm in rungs[1:] else None
        seeds = sorted(table[arm].keys() & table.get(below, {}).keys()) if below else []
        if below and seeds:
            added = t_interval([scale * (table[arm][seed] - table[below][seed]) for seed in seeds])
            row |= {"adds": added.mean, "adds_low": added.low, "adds_high": added.high, "pairs": added.n}
            row["paper_adds"] = PAPER[arm] - PAPER[below]
        rows[arm] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("arm")
