"""Rollouts sampled while the policy trains on the step before: one step old, never another number."""

import threading

import pandas as pd
import pytest
import torch
from small_runs import RUN, Run, rows, untimed

from dapo_lit.lit.module import DAPOModule
from dapo_lit.rollout.collect import Collector, ExhaustedError
from dapo_lit.step.scoring import score
from dapo_lit.train import train

OVERLAP = "rollout.overlap=true"


def test_every_batch_but_the_first_is_one_step_old_and_none_older(compose):
    run = Run(compose(OVERLAP, "budget.steps=4", "logger.rollouts_every=1"))
    run.fit()
    trained = rows(run.folder.path)[1:]
    assert [row["sampling/staleness_max"] for row in trained] == [0, 1, 1, 1]
    assert [row["sampling/stale_tokens_frac"] for row in trained] == [0, 1, 1, 1]
    versions = [
        set(pd.read_parquet(file)["policy_version"])
        for file in sorted((run.folder.path / "rollouts").glob("*.parquet"))
    ]
    assert versions == [{0}, {0}, {1}, {2}]
    assert all(row["loss/policy"] is not None for row in trained)


def test_the_old_policy_of_an_overlapped_step_is_the_one_that_sampled_it(compose, monkeypatch):
    scored = []

    def noted(forward, objective, batch, later=()):
        found = score(forward, objective, batch, later)
        scored.append((found[0].old_logprobs, batch.rollout_logprobs))
        return found

    monkeypatch.setattr("dapo_lit.lit.module.score", noted)
    Run(compose(OVERLAP, "budget.steps=2")).fit()
    old, sampled = scored[1]
    assert torch.equal(old, sampled)


def test_the_next_step_is_under_way_while_the_policy_trains(compose, monkeypatch):
    """Sampling in this test cannot end before training has begun, and training not before sampling has."""
    training, sampling = threading.Event(), threading.Event()
    collect, step = Collector.collect, DAPOModule.training_step

    def collects(self, number, version):
        if number == 2:
            sampling.set()
            assert training.wait(60)
        return collect(self, number, version)

    def trains(self, batch, index):
        if batch.step == 1:
            training.set()
            assert sampling.wait(60)
        return step(self, batch, index)

    monkeypatch.setattr(Collector, "collect", collects)
    monkeypatch.setattr(DAPOModule, "training_step", trains)
    run = Run(compose(OVERLAP, "budget.steps=2"))
    run.fit()
    assert len(rows(run.folder.path)) == 3


def test_a_run_that_is_stopped_while_it_trains_goes_on_bit_for_bit(compose, tmp_path, monkeypatch):
    settings = (OVERLAP, "budget.steps=5")
    train(compose(*settings, f"runs_dir={tmp_path / 'whole'}"), [])
    step = DAPOModule.training_step

    def asks_to_stop(self, batch, index):
        if batch.step == 3:
            self.trainer.datamodule.stop_requested.requested = True
        return step(self, batch, index)

    stopped = f"runs_dir={tmp_path / 'stopped'}"
    with monkeypatch.context() as patch:
        patch.setattr(DAPOModule, "training_step", asks_to_stop)
        with pytest.raises(SystemExit, match="0"):
            train(compose(*settings, stopped), [])
    assert len(untimed(tmp_path / "stopped" / RUN)) == 4
    train(compose(*settings, stopped, "resume=true"), [])
    assert untimed(tmp_path / "stopped" / RUN) == untimed(tmp_path / "whole" / RUN)


def test_what_fails_while_it_samples_ahead_ends_the_run_after_the_step_before_is_saved(compose, monkeypatch):
    collect = Collector.collect

    def fails_in_step_3(self, step, version):
        if step == 3:
            raise ExhaustedError("nothing to learn from")
        return collect(self, step, version)

    monkeypatch.setattr(Collector, "collect", fails_in_step_3)
    run = Run(compose(OVERLAP, "budget.steps=4", "evaluation.every=2", "trainer.checkpoint_every=2"))
    with pytest.raises(ExhaustedError, match="nothing to learn from"):
        run.fit()
    written = rows(run.folder.path)
    assert [row["step"] for row in written] == [0, 1, 2]
    assert written[2]["eval/four_sums/avg@2"] is not None  # asked for while step 3 was under way
    assert [file.name for file in run.folder.checkpoints] == ["step_000002.ckpt"]
