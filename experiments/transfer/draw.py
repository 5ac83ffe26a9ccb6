"""Draws the 48 regimes of this study, and writes each as a config of the group `drawn`.

    python experiments/transfer/draw.py

Sixteen of each task; the ranges are around the calibrated regimes joint, programs and parity, so that a run can learn.
No regime was looked at before the draw, and none is left out after it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import yaml

FOLDER = Path(__file__).parent / "conf" / "drawn"
SEED, REGIMES = 20261128, 48
STEPS, COMPLETIONS, MINIBATCHES = 12, 512, 4
"""Of a run; of a rollout step, and the mini-batches that they are divided into."""
MARKS = (16, 8, 4, 2)
"""Held-out accuracy is measured at these parts of the tokens of a run whose answers all fill the limit, too. Each mark
is twice the one before, so that the last one that a run passes is at half of its budget at least."""


def sums(rng: np.random.Generator) -> dict[str, Any]:
    """Sums as in `joint`: written steps are uncommon and better, some answers ramble."""
    limit = int(rng.choice([28, 32, 40, 48, 64]))
    written, rambling = _share(rng, 0.05, 0.25), _share(rng, 0.02, 0.25)
    chars = {"wrong_by": 5, "step_wrong": 0.01, "rambling_chars": limit + 16}
    first = {"immediate": 0.35, "running_sums": 0.55, "checked": 0.05, "rambling": 0.05, "immediate_wrong": 0.9}
    then = {
        "immediate": round(0.97 - written - rambling, 3),
        "running_sums": written,
        "checked": 0.03,
        "rambling": rambling,
        "immediate_wrong": _share(rng, 0.6, 0.9),
    }
    stages = [_stage(500, 16, 3e-3, first | chars), _stage(200, 32, 1e-3, then | chars)]
    return _regime("short_sums", limit, stages, rng)


def programs(rng: np.random.Generator) -> dict[str, Any]:
    """Programs on strings as in `programs`; a worked program takes 20 to 60 tokens, one named at once about ten."""
    limit = int(rng.choice([20, 32, 48, 64, 80]))
    worked, rambling = _share(rng, 0.05, 0.25), _share(rng, 0.02, 0.25)
    first = {"immediate": 0.45, "worked": 0.47, "rambling": 0.08, "immediate_wrong": 0.4}
    then = {
        "immediate": round(1 - worked - rambling, 3),
        "worked": worked,
        "rambling": rambling,
        "immediate_wrong": _share(rng, 0.6, 0.9),
    }
    both = {"worked_wrong": 0.1, "rambling_chars": 96}
    stages = [_stage(800, 24, 3e-3, first | both), _stage(200, 32, 1e-3, then | both)]
    judged = {"reward": {"function": "dapo_lit.tasks.string_programs.reward"}}
    return _regime("string_programs", limit, stages, rng) | judged


def parity(rng: np.random.Generator) -> dict[str, Any]:
    """Parity as in `parity`: a guess is right half of the time, a chain of 27 to 45 tokens nearly always."""
    limit = int(rng.choice([34, 40, 46, 52]))
    chains = {"chains": _share(rng, 0.04, 0.25), "step_wrong": 0.01}
    stages = [_stage(300, 32, 3e-3, {"chains": 0.5, "step_wrong": 0.01}), _stage(200, 32, 1e-3, chains)]
    return _regime("parity", limit, stages, rng)


def _regime(task: str, limit: int, stages: list[dict[str, Any]], rng: np.random.Generator) -> dict[str, Any]:
    group = int(rng.choice([4, 8, 16]))
    prompts = COMPLETIONS // group
    return {
        "defaults": [{"override /task": task}],
        "task": {"max_response_tokens": limit, "base": {"stages": stages}},
        "algorithm": {
            "num_prompts": prompts,
            "samples_per_prompt": group,
            "minibatch_prompts": prompts // MINIBATCHES,
            "epochs": int(rng.choice([1, 2, 4])),
            "overlong": {"cache_tokens": max(2, round(limit * float(rng.uniform(0.1, 0.4))))},
            "optimizer": {"lr": float(f"{np.exp(rng.uniform(np.log(1e-4), np.log(4e-4))):.2g}")},
        },
        "evaluation": {"at_tokens": [STEPS * COMPLETIONS * limit // part for part in MARKS]},
    }


def _stage(updates: int, batch_size: int, learning_rate: float, mixture: dict[str, float]) -> dict[str, Any]:
    return {"updates": updates, "batch_size": batch_size, "learning_rate": learning_rate, "mixture": mixture}


def _share(rng: np.random.Generator, low: float, high: float) -> float:
    return round(float(rng.uniform(low, high)), 3)


def drawn(seed: int = SEED) -> list[str]:
    """The files' texts, in order."""
    rng = np.random.default_rng(seed)
    texts = []
    for number in range(REGIMES):
        # The tasks take turns: every run of numbers that law.py compares has as many regimes of each.
        regime = (sums, programs, parity)[number % 3](rng)
        regime["task"]["label"] = f"drawn_{number:02}"
        texts.append("# @package _global_\n" + yaml.safe_dump(regime, sort_keys=False))
    return texts


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(drawn()):
        (FOLDER / f"{number:02}.yaml").write_text(text, encoding="utf-8")
