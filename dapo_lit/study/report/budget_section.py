"""The fourth section of a report: arms at equal budget, and reward against validation."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from dapo_lit.study.compare.equal_budget import BUDGETS, at_budget, budget_to_reach, common_budget
from dapo_lit.study.read.curves import AXES
from dapo_lit.study.read.outcomes import amount
from dapo_lit.study.report.document import Part, Table
from dapo_lit.study.report.results import Results
from dapo_lit.study.report.sentences import interval


def budget_section(results: Results) -> list[Part]:
    """Section 4: arms at equal budget, the budget each needs, reward against validation."""
    key, runs = results.metric, results.runs
    budgets = {axis: limit for axis in BUDGETS if (limit := common_budget(runs, key, axis)) is not None}
    tables = [at_budget(runs, key, axis, limit) for axis, limit in budgets.items()]
    rows = [
        [arm, *(interval(key, table[arm]) if arm in table else "not reached" for table in tables)]
        for arm in runs.usable.arms
    ]
    columns = ["arm", *(f"{AXES[axis]} {limit:,.0f}" for axis, limit in budgets.items())]
    caption = (
        f"{key} at equal budget: on each axis the largest budget that every run reached. Curves are interpolated "
        "between checkpoints, never extrapolated. Generated tokens include those of discarded groups."
    )
    return [
        "## 4. Equal budget",
        Table("equal_budget", caption, columns, rows),
        *_needed(results, list(budgets)),
        *_reward(results),
    ]


def _needed(results: Results, axes: Sequence[str]) -> list[Part]:
    """The budget at which each arm first reaches the mean outcome of a reference arm."""
    means = {arm: float(np.mean(list(seeds.values()))) for arm, seeds in results.scores.items() if seeds}
    base = next((arm for arm in ("naive_grpo", "dapo") if arm in means), next(iter(means), None))
    if base is None:
        return []
    tables = [budget_to_reach(results.runs, results.metric, axis, means[base]) for axis in axes]
    rows = []
    for arm in means:
        cells = []
        for reach in (table.get(arm) for table in tables):
            median = "more than its budget" if reach is None or reach.median is None else f"{reach.median:,.0f}"
            cells.append(f"{median} ({reach.reached} of {reach.runs})" if reach else "–")
        rows.append([arm, *cells])
    caption = (
        f"Budget to first reach {results.metric} = {amount(results.metric, means[base])}, the mean outcome of {base}: "
        "median over seeds, where a run that never gets there counts as more than any (in brackets: runs that did)."
    )
    return [Table("budget_to_reach", caption, ["arm", *(AXES[axis] for axis in axes)], rows)]


def _reward(results: Results) -> list[Part]:
    """Whether training reward and the primary metric rise together."""
    rows = []
    for arm in results.runs.usable.arms:
        rhos = []
        for run in results.runs.of(arm):
            a, b = run.series("rollout/reward").align(run.series(results.metric), join="inner")
            if run.usable and len(a) > 2 and a.nunique() > 1 and b.nunique() > 1:
                rhos.append(float(stats.spearmanr(a, b).statistic))
        if rhos:
            rows.append([arm, f"{np.mean(rhos):.2f} ({min(rhos):.2f} to {max(rhos):.2f}) n={len(rhos)}"])
    if not rows or results.metric == "rollout/accuracy":
        return []
    caption = (
        f"Rank correlation over checkpoints of training reward (rollout/reward) with {results.metric}, mean over seeds "
        "(lowest to highest)."
    )
    return [Table("reward_correlation", caption, ["arm", "rank correlation"], rows)]
