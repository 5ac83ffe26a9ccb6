"""The fourth section of a report: arms at equal budget, compute fits, reward against validation, the paper's claims."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from dapo_lit.study.compare.equal_budget import BUDGETS, at_budget, budget_to_reach, common_budget
from dapo_lit.study.compare.sigmoid import fit_sigmoid
from dapo_lit.study.read.curves import AXES, curve
from dapo_lit.study.read.outcomes import amount
from dapo_lit.study.report.document import Part, Table
from dapo_lit.study.report.results import Results
from dapo_lit.study.report.sentences import interval


def budget_section(results: Results) -> list[Part]:
    """Section 4: arms at equal budget, the budget each needs, compute fits, reward against validation, claims."""
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
        "## 4. Equal budget, and the paper's claims",
        Table("equal_budget", caption, columns, rows),
        *_needed(results, list(budgets)),
        *_ceilings(results),
        *_reward(results),
        *_claims(results),
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


def _ceilings(results: Results) -> list[Part]:
    """A sigmoid over generated tokens for each arm, with the reason where none can be fitted."""
    if not results.metric.startswith("eval/"):
        return []
    rows = []
    for arm in results.runs.usable.arms:
        seen = [curve(run, results.metric, "tokens_generated") for run in results.runs.of(arm) if run.usable]
        if seen := [series for series in seen if len(series)]:
            try:
                if min(np.sum(series.index > 0) for series in seen) < 6:
                    raise ValueError("fewer than six checkpoints per run")
                fit = fit_sigmoid(np.concatenate([s.index for s in seen]), np.concatenate([s.to_numpy() for s in seen]))
            except ValueError as reason:
                rows.append([arm, "–", "–", str(reason)])
                continue
            ceiling = "not identified"
            if fit.ceiling is not None and fit.interval is not None:
                mean, low, high = (amount(results.metric, value) for value in (fit.ceiling, *fit.interval))
                ceiling = f"{mean} [{low}, {high}]"
            middle = f"{fit.middle:,.0f}" if np.isfinite(fit.middle) else "–"
            rows.append([arm, ceiling, middle, fit.refusal or "–"])
    fitted = any(row[1] != "–" for row in rows)
    caption = (
        f"Sigmoid of {results.metric} over generated tokens, all seeds of an arm pooled: ceiling (points, 95 % profile "
        "interval, residuals taken as independent) and the tokens of half the rise. No ceiling is named where the data "
        "do not show it."
    )
    return [Table("compute_fit", caption, ["arm", "ceiling", "half-way tokens", "why not"], rows)] if fitted else []


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


def _claims(results: Results) -> list[Part]:
    rows = [[c.number, c.text, c.metric, c.arms, c.verdict, c.evidence] for c in results.claims]
    caption = (
        "The paper's claims at this scale. Each is put as one number per seed that is positive where the claim is "
        "true: it holds (mean above 0) or fails (below) if the exact sign-flip p is at most 0.05, and is undecided "
        "otherwise. Gains are judged by held-out accuracy. Not adjusted for the number of claims."
    )
    return [
        "### The paper's claims",
        Table("claims", caption, ["", "claim", "metric", "arms", "verdict", "evidence"], rows),
    ]
