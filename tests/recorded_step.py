"""A run with two recorded steps, the page of the second of them, and the replays that the page was made of.

Each step has two passes with two updates each; answers near the limit are common, and updates large.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import SMALL

from dapo_lit.cli.command import compose
from dapo_lit.config import Config
from dapo_lit.train import train
from dapo_lit_tools.commands.replay import main
from dapo_lit_tools.replays.recorded_step import Recording, Replayed, replay
from dapo_lit_tools.replays.tables import token_table

RUN = Path("four_sums") / "dapo" / "seed_0"
REPLAYS = "replays.pt"
"""Beside the folder of the page: what `numbers` gives, by the settings of the replay's algorithm."""


def make(folder: Path) -> None:
    config = compose(
        *SMALL, f"runs_dir={folder}", "algorithm.num_prompts=6", "algorithm.minibatch_prompts=3",
        "algorithm.epochs=2", "algorithm.optimizer.lr=1e-2", "algorithm.clip.dual=1.5", "budget.steps=3",
        "replay.record=[1,3]", "logger.rollouts_every=0", "evaluation.every=0", "preflight=false",
    )  # fmt: skip
    train(config, [])
    found: dict[str, dict[str, Any]] = {}

    def kept(recording: Recording, config: Config, **options: Any) -> Replayed:
        arm = replay(recording, config, **options)
        found[settings(config)] = numbers(arm)
        return arm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dapo_lit_tools.replays.page.replay", kept)
        assert main([str(folder / RUN), "step=3", "--html"]) == 0
    torch.save(found, folder / RUN / REPLAYS)


def settings(config: Config) -> str:
    return config.algorithm.model_dump_json()


def numbers(arm: Replayed) -> dict[str, Any]:
    """What the page computes as well."""
    return {
        "kept": [[g.step, g.index] for g in arm.accepted],
        "rewards": [c.reward_shaped for g in arm.generated for c in g.completions],
        "table": token_table(arm, lambda ids: ""),
        "updates": len(arm.log.losses),
        "loss": arm.metrics["loss/policy"],
    }
