"""A row of metrics and the rollouts of its step, where groups are carried over."""

from dataclasses import replace

import pandas as pd
import pytest
from small_runs import Run, rows

from dapo_lit.lit import datamodule
from dapo_lit.switches.algorithm import collection_rules


def test_a_row_leaves_out_what_was_carried_into_its_step(compose, monkeypatch):
    def many_ahead(algorithm):
        return replace(collection_rules(algorithm), margin=6.0, window=8.0)

    monkeypatch.setattr(datamodule, "collection_rules", many_ahead)
    run = Run(compose("algorithm.dynamic_sampling.carry_over=all", "budget.steps=6", "logger.rollouts_every=1"))
    run.fit()
    carried_in = 0
    for row in rows(run.folder.path)[1:]:
        file = run.folder.path / "rollouts" / f"step_{row['step']:06d}.parquet"
        rollouts = pd.read_parquet(file)
        counted = rollouts[rollouts.examined & (rollouts.submitted_step == row["step"])]
        carried_in += rollouts.examined.sum() - len(counted)
        for key, column in (("rollout/accuracy", "correct"), ("reward/correctness", "reward")):
            assert row[key] == (pytest.approx(counted[column].mean()) if len(counted) else None)
    assert carried_in > 0
