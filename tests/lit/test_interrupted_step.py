"""A run that is stopped in the middle of a rollout step goes on as if it had not been."""

from pathlib import Path

import pytest
import torch

from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.study.metrics_file import read_metrics
from dapo_lit.train import train

RUN = Path("runs") / "four_sums" / "dapo" / "seed_0"
TIMING = ("wall_s", "time/", "perf/", "memory/")


def rows(folder: Path) -> list[dict]:
    table, _ = read_metrics(folder)
    return [
        {k: v for k, v in row.items() if not k.startswith(TIMING) and v == v}
        for row in table.reset_index().to_dict("records")
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(sorted((folder / "checkpoints").glob("*.ckpt"))[-1], weights_only=False)["state_dict"]


@pytest.mark.parametrize("carry_over", ["none", "finished", "all"])
def test_a_step_that_is_interrupted_while_it_samples_begins_anew_bit_for_bit(
    tmp_path, compose, monkeypatch, carry_over
):
    settings = (f"algorithm.dynamic_sampling.carry_over={carry_over}", "rollout.max_batch_size=12", "budget.steps=5")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(compose(*settings, f"runs_dir={whole}"), [])
    setup = RolloutDataModule.setup

    def stops_in_step_3(self, stage):
        setup(self, stage)
        asked = 0

        def stop_requested() -> bool:
            nonlocal asked
            asked += self.next_step == 3
            self.stop_requested.requested = asked > 5
            return asked > 5

        self.collector.stop_requested = stop_requested

    with monkeypatch.context() as patch:
        patch.setattr(RolloutDataModule, "setup", stops_in_step_3)
        with pytest.raises(SystemExit, match="0"):
            train(compose(*settings, f"runs_dir={stopped}"), [])
    assert [row["step"] for row in rows(stopped / RUN.relative_to("runs"))] == [0, 1, 2]
    train(compose(*settings, f"runs_dir={stopped}", "resume=true"), [])
    assert rows(stopped / RUN.relative_to("runs")) == rows(whole / RUN.relative_to("runs"))
    for name, tensor in weights(whole / RUN.relative_to("runs")).items():
        assert torch.equal(tensor, weights(stopped / RUN.relative_to("runs"))[name]), name
