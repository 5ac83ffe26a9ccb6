"""The table of arms of a committed study, whose settings are compared as the trainer says."""

from pathlib import Path

import pandas as pd

import dapo_lit as dapo_lit  # says how the configs of its runs are read
from ablations.read import outcomes
from ablations.read.runs import load
from ablations.report.report import Table, arms_section
from ablations.report.results import analyse

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_an_arms_interval_is_over_its_base_policies() -> None:
    runs = load(EXPERIMENTS / "table1_joint" / "runs")
    results = analyse(runs)
    table = next(part for part in arms_section(results) if isinstance(part, Table) and part.name == "outcomes")
    row = next(row for row in table.rows if row[0] == "naive_grpo")
    scores, base_of = results.scores["naive_grpo"], outcomes.bases(runs)
    means = pd.Series(scores).groupby(pd.Series(base_of)).mean()
    half = 2.5706 * means.std() / 6**0.5  # t of five degrees of freedom
    assert row[1:-1] == [
        "12",
        "6",
        *(f"{100 * x:.1f}" for x in (means.mean(), means.mean() - half, means.mean() + half)),
    ]
    assert "over base policies" in table.caption
