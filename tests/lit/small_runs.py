"""Small runs without the command around them: a trainer ready to fit, and a step that nothing has trained on."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ablations.files.metrics_file import read_metrics
from dapo_lit.build.components import RunComponents
from dapo_lit.cli.jobs import arm_of
from dapo_lit.config import Config
from dapo_lit.lit.callbacks import Checkpoints, Recorder
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.fit import build_trainer
from dapo_lit.lit.module import DAPOModule
from dapo_lit.objective.tokens import Statistics
from dapo_lit.runs.checkpoint_files import complete
from dapo_lit.runs.loggers import Loggers
from dapo_lit.runs.preemption import StopSignal
from dapo_lit.runs.run_folder import open_run
from dapo_lit.step.batch import RolloutStep, TokenBatch
from dapo_lit.step.loss import TokenData
from dapo_lit.step.scoring import score

RUN = Path("four_sums") / "dapo" / "seed_0"
"""Below the folder of runs."""
TIMING = ("wall_s", "time/", "perf/", "memory/")


class Run:
    """A trainer that is ready to fit, with its parts at hand."""

    def __init__(self, config: Config, owner: str = "") -> None:
        self.parts = RunComponents(config)
        self.folder = open_run(config, [], arm_of(config), owner)
        stop = StopSignal()
        loggers = Loggers(config, self.folder)
        self.datamodule = RolloutDataModule(config, self.parts, stop)
        self.module = DAPOModule(config, lambda: self.parts.policy)
        self.module.logs = False
        callbacks = [Recorder(config, self.folder, loggers), Checkpoints(config, self.folder, stop)]
        self.trainer = build_trainer(config, callbacks)

    def fit(self) -> None:
        self.trainer.fit(self.module, datamodule=self.datamodule)


def rows(folder: Path) -> list[dict]:
    """The rows of a run without their checksums."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "crc32"} for row in found]


def untimed(folder: Path) -> list[dict]:
    """The rows of a run without nulls and what no other run repeats."""
    table = read_metrics(folder).table.reset_index()
    return [{k: v for k, v in row.items() if not k.startswith(TIMING) and v == v} for row in table.to_dict("records")]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(complete(folder / "checkpoints")[-1], weights_only=False)["state_dict"]


def same_run(one: Path, other: Path) -> bool:
    """Rows and final weights, bit for bit."""
    first, second = weights(one), weights(other)
    return untimed(one) == untimed(other) and all(torch.equal(first[name], second[name]) for name in first)


def stop_in(step: int, patch: pytest.MonkeyPatch, failure: BaseException | None = None) -> None:
    """A run started under this patch is asked to stop in the middle of sampling `step`, or fails there."""
    setup = RolloutDataModule.setup

    def stops(self, stage):
        setup(self, stage)
        asked = 0

        def stop_requested() -> bool:
            nonlocal asked
            asked += self.next_step == step
            if asked > 5 and failure is not None:
                raise failure
            self.stop_requested.requested = asked > 5
            return asked > 5

        self.collector.setup.stop_requested = stop_requested

    patch.setattr(RolloutDataModule, "setup", stops)


def scored(module: DAPOModule, batch: TokenBatch, later: Sequence[int] = ()) -> tuple[TokenData, Statistics]:
    """The tokens of a batch as they are before the updates, with advantages."""
    tokens, statistics = score(module.policy_forward, module.objective, batch, later)
    return module.objective.credit(batch, tokens), statistics


def collected_step(config: Config, monkeypatch: pytest.MonkeyPatch) -> tuple[DAPOModule, RolloutStep]:
    """A module and a real rollout step that it has not trained on."""
    run, caught = Run(config), {}
    monkeypatch.setattr(DAPOModule, "make_updates", lambda self, batch: caught.setdefault("step", batch) and None)
    run.fit()
    return run.module, caught["step"]
