"""A run that is stopped in the middle of a rollout step goes on as if it had not been."""

import json

import pytest
import torch
from lightning import Trainer
from small_runs import RUN, stop_in

from dapo_lit.engines.restarting import EngineFailedError
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.rollout.records import OpenGroup
from dapo_lit.rollout.step_collection import StepCollection
from dapo_lit.runs.checkpoint_files import newest_good
from dapo_lit.train import train


def test_the_checkpoint_before_stands_where_the_one_with_the_half_of_a_step_cannot_be_written(
    tmp_path, compose, monkeypatch
):
    monkeypatch.setattr(TorchEngine, "reproducible", False)
    stop_in(2, monkeypatch)
    saved, save = [], Trainer.save_checkpoint

    def fails_later(self, path, weights_only) -> None:
        if saved:
            raise RuntimeError("storage gone")
        saved.append(save(self, path, weights_only=weights_only))

    monkeypatch.setattr(Trainer, "save_checkpoint", fails_later)
    settings = ("rollout.max_batch_size=12", "budget.steps=3", "trainer.checkpoint_every=1", f"runs_dir={tmp_path}")
    with pytest.raises(RuntimeError, match="storage gone"):
        train(compose(*settings), [])
    checkpoint = newest_good(tmp_path / RUN / "checkpoints")
    assert checkpoint.name == "step_000001.ckpt"


@pytest.mark.parametrize("failure", [None, EngineFailedError("failed twice")])
def test_the_half_of_the_first_step_is_kept_where_it_could_not_be_sampled_again(
    tmp_path, compose, monkeypatch, failure
):
    monkeypatch.setattr(TorchEngine, "reproducible", False)
    settings = ("rollout.max_batch_size=12", "budget.steps=2", f"runs_dir={tmp_path}")
    with monkeypatch.context() as patch:
        stop_in(1, patch, failure)
        with pytest.raises((SystemExit, EngineFailedError)):
            train(compose(*settings), [])
    folder = tmp_path / RUN
    (checkpoint,) = (folder / "checkpoints").glob("*.ckpt")
    state = torch.load(checkpoint, weights_only=False)
    sampled = state["RolloutDataModule"]["collector"]["interrupted"].tokens_generated
    assert sampled > 0
    taken, init = [], StepCollection.__init__

    def takes(self, setup, step, start, *more) -> None:
        taken.append(start.mapped(OpenGroup.copy))
        init(self, setup, step, start, *more)

    monkeypatch.setattr(StepCollection, "__init__", takes)
    train(compose(*settings, "resume=true"), [])
    assert taken[0].tokens_generated == sampled  # the step went on from it
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in lines] == [0, 1, 2]
    assert lines[1]["tokens_generated"] > sampled
