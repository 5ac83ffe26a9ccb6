"""A committed study is compared as its trainer says which settings count, and without it."""

from pathlib import Path

import pandas as pd

import dapo_lit as dapo_lit  # says how the configs of its runs are read
from ablations import trainer
from ablations.read import outcomes
from ablations.read.guard import refusals
from ablations.read.runs import load
from ablations.report.report import Table, arms_section
from ablations.report.results import analyse
from ablations.trainer import Trainer, hand_over

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


def test_without_its_trainer_a_committed_study_may_be_compared_as_well() -> None:
    known = trainer._trainer
    try:
        hand_over(Trainer())
        runs = load(EXPERIMENTS / "table1_joint" / "runs")
        assert refusals(runs) == []
        assert not any(key.startswith(("study.", "logger.")) for key in runs.runs[0].identity)
    finally:
        hand_over(known)
