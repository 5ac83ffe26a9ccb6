"""A run that is stopped in the middle of a rollout step goes on as if it had not been."""

import json

import pytest
import torch
from small_runs import RUN, stop_in

from dapo_lit.engines.protocol import EngineError
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.rollout.records import OpenGroup
from dapo_lit.rollout.step_collection import StepCollection
from dapo_lit.train import train


@pytest.mark.parametrize("failure", [None, EngineError("vLLM failed")])
def test_the_half_of_the_first_step_is_kept_where_it_could_not_be_sampled_again(
    tmp_path, compose, monkeypatch, failure
):
    monkeypatch.setattr(TorchEngine, "reproducible", False)
    settings = ("rollout.max_batch_size=12", "budget.steps=2", f"runs_dir={tmp_path}")
    with monkeypatch.context() as patch:
        stop_in(1, patch, failure)
        with pytest.raises((SystemExit, EngineError)):
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
