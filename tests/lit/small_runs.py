"""Small runs without the command around them: a trainer ready to fit, and a step that nothing has trained on."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from dapo_lit.build.parts import Parts
from dapo_lit.config import Config
from dapo_lit.lit.callbacks import Recorder
from dapo_lit.lit.checkpoints import Checkpoints
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.fit import build_trainer
from dapo_lit.lit.module import DAPOModule
from dapo_lit.objective.tokens import Statistics
from dapo_lit.runs.loggers import Loggers
from dapo_lit.runs.preemption import StopSignal
from dapo_lit.runs.run_folder import open_run
from dapo_lit.step.batch import RolloutStep, TokenBatch
from dapo_lit.step.loss import TokenAxis
from dapo_lit.step.scoring import score
from dapo_lit.train import arm_of


class Run:
    """A trainer that is ready to fit, with its parts at hand."""

    def __init__(self, config: Config) -> None:
        self.parts = Parts(config)
        self.folder = open_run(config, [], arm_of(config))
        stop = StopSignal()
        loggers = Loggers(config, self.folder)
        self.datamodule = RolloutDataModule(config, self.parts, stop)
        self.module = DAPOModule(config, lambda: self.parts.policy)
        self.module.logs = False
        self.trainer = build_trainer(
            config, [Recorder(config, self.folder, loggers), Checkpoints(config, self.folder, stop)]
        )

    def fit(self) -> None:
        self.trainer.fit(self.module, datamodule=self.datamodule)


def rows(folder: Path) -> list[dict]:
    """The rows of a run without their checksums."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "crc32"} for row in found]


def scored(module: DAPOModule, batch: TokenBatch, later: Sequence[int] = ()) -> tuple[TokenAxis, Statistics]:
    """The tokens of a batch as they are before the updates, with advantages."""
    tokens, statistics = score(module.policy_forward, module.objective, batch, later)
    return module.objective.credit(batch, tokens), statistics


def collected_step(config: Config, monkeypatch: pytest.MonkeyPatch) -> tuple[DAPOModule, RolloutStep]:
    """A module and a real rollout step that it has not trained on."""
    run, caught = Run(config), {}
    monkeypatch.setattr(DAPOModule, "make_updates", lambda self, batch: caught.setdefault("step", batch) and None)
    run.fit()
    return run.module, caught["step"]
