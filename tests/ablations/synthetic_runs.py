"""Synthetic run folders with known effects, for tests of reports. Nothing here was trained."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from shipped import design

from ablations.designs import Arm
from ablations.files.metrics_file import metrics_line
from ablations.techniques import DAPO

EFFECTS = {
    "overlong_filtering": 0.02,
    "clip_higher": 0.10,
    "soft_overlong_punishment": 0.03,
    "token_level_loss": 0.01,
    "dynamic_sampling": 0.06,
}
"""What each technique adds to the final accuracy of a synthetic run."""


def write_run(
    folder: Path,
    arm: Arm = Arm(DAPO),  # noqa: B008
    seed: int = 0,
    *,
    study: str = "table1",
    steps: int = 40,
    every: int = 10,
    effects: Mapping[str, float] = EFFECTS,
    seed_sd: float = 0.02,
    status: str = "finished",
    code_hash: str = "c0de",
    questions: int = 24,
    samples: int = 4,
    keys: Mapping[str, Any] | None = None,
    emergence: float | None = None,
) -> Path:
    """Writes runs/<study>/<arm>/seed_<n> below `folder` and returns it.

    Args:
        effects: final accuracy is 0.4 + the sum over techniques that are on + a draw for the seed, shared by all arms.
        seed_sd: half of its variance is shared by the arms of a seed, half is the run's own.
        emergence: the step at which written steps take over, None for a run without that metric, inf for never.
        keys: replaces config values, dotted keys.
    """
    path = folder / study / arm.name / f"seed_{seed}"
    path.mkdir(parents=True)
    shared = np.random.default_rng([seed, 1]).normal(0, seed_sd * 0.5**0.5)
    rng = np.random.default_rng([seed, 2, *arm.name.encode()])
    final = 0.4 + sum(effects.get(t, 0) * on for t, on in arm.techniques.items()) + shared
    final += rng.normal(0, seed_sd * 0.5**0.5)
    config = _config(arm, seed, study, keys or {})
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    (path / "overrides.txt").write_text(f"study.arm='{arm.name}'\nseed={seed}\n")
    rows = _rows(arm, steps, every, final, rng, emergence)
    (path / "metrics.jsonl").write_text("".join(map(metrics_line, rows)))
    for step in range(0, steps + 1, every):
        _questions(path / "eval" / "chain_sum" / f"step_{step:06d}.parquet", rows[step], questions, samples, seed)
    record = {
        "study": study, "arm": arm.name, "seed": seed, "config_hash": f"{arm.name}/{seed}", "code_hash": code_hash,
        "git_commit": "0" * 40, "git_dirty_hash": None, "versions": {"torch": "2.13.0"},
        "hardware": {"processor": "test"},
        "status": status, "started_at": f"2026-01-01T00:00:{seed % 60:02d}+00:00",
        "updated_at": "2026-01-01T01:00:00+00:00", "pid": 1, "techniques": dict(arm.techniques),
        "error": "RuntimeError: out of memory" if status == "failed" else None,
    }  # fmt: skip
    (path / "run.json").write_text(json.dumps(record))
    if status in ("finished", "solved", "exhausted"):
        (path / "DONE.json").write_text(json.dumps({"config_hash": record["config_hash"], "status": status}))
    return path


def write_study(folder: Path, name: str = "table1", seeds: Sequence[int] = (0, 1, 2), **kind: Any) -> Path:
    """All arms of a design at the given seeds; returns the study's folder."""
    for arm in design(name).arms:
        for seed in seeds:
            write_run(folder, arm, seed, study=name, **kind)
    return folder / name


def _config(arm: Arm, seed: int, study: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "seed": seed,
        "study_name": study,
        "runs_dir": "runs",
        "resume": "auto",
        "algorithm": {"techniques": arm.techniques, "clip": {"low": 0.2, "high": 0.28}},
        "task": {"label": "chain_sum", "base_seed": seed, "max_response_tokens": 64},
        "budget": {"steps": 40, "tokens_generated": None, "wall_s": None},
        "evaluation": {"every": 10, "samples": 4},
    }
    for key, value in {**arm.settings, **keys}.items():
        *parents, last = key.split(".")
        section = config
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return config


def _rows(
    arm: Arm, steps: int, every: int, final: float, rng: np.random.Generator, emergence: float | None
) -> list[dict[str, Any]]:
    on = arm.techniques
    rows = []
    tokens = trained = 0
    for step in range(steps + 1):
        progress = step / steps
        accuracy = float(np.clip(0.2 + (final - 0.2) * (1 - np.exp(-4 * progress)) / (1 - np.exp(-4)), 0, 1))
        length = 20 + 15 * progress * (1 if on["token_level_loss"] else 1.4)
        row: dict[str, Any] = {
            "step": step,
            "gradient_step": 4 * step,
            "tokens_generated": tokens,
            "tokens_trained": trained,
            "wall_s": 2.0 * step * (1.3 if on["dynamic_sampling"] else 1.0),
        }
        if step % every == 0:
            row |= {
                f"eval/chain_sum/{k}@4": min(1.0, accuracy + d) for k, d in (("avg", 0), ("pass", 0.15), ("cons", 0.05))
            }
        if step:
            waste = 0.4 if on["dynamic_sampling"] else 0.0
            trained += int(512 * length)
            tokens += int(512 * length / (1 - waste))
            row |= {"tokens_generated": tokens, "tokens_trained": trained}
            row |= _training(on, progress, accuracy, length, waste, rng)
            if emergence is not None:
                row["task/steps_frac"] = 0.9 if step >= emergence else 0.07
        rows.append(row)
    return rows


def _training(
    on: Mapping[str, bool], progress: float, accuracy: float, length: float, waste: float, rng: np.random.Generator
) -> dict[str, Any]:
    noise = rng.normal(0, 0.01, 8)
    entropy = 0.4 * np.exp(-(0.8 if on["clip_higher"] else 2.5) * progress) + abs(noise[0])
    correct = 0.05 + 0.3 * progress
    wrong = 0.2 * (1 - progress)
    return {
        "rollout/accuracy": accuracy + noise[1], "rollout/reward": 2 * (accuracy + noise[1]) - 1,
        "rollout/reward_shaped": 2 * (accuracy + noise[1]) - 1 - (0.05 if on["soft_overlong_punishment"] else 0),
        "rollout/length_mean": length + 20 * noise[2], "rollout/length_correct": length - 3,
        "rollout/length_wrong": length + 4, "rollout/length_max": 64,
        "rollout/truncated_frac": 0.03 + 0.06 * (not on["soft_overlong_punishment"]),
        "rollout/groups_all_correct_frac": correct, "rollout/groups_all_wrong_frac": wrong,
        "rollout/groups_mixed_frac": 1 - correct - wrong, "rollout/entropy": entropy,
        "rollout/prob_mean": 0.75 + 0.1 * progress,
        "rollout/unique_frac": 0.9 - (0.1 if on["clip_higher"] else 0.5) * progress + noise[3],
        "rollout/repetition_frac": 0.02, "batch/accuracy": 0.5, "batch/reward": 0.0, "batch/length_mean": length,
        "policy/entropy": entropy * 0.95, "policy/entropy_seq_mean": entropy * 0.9,
        "policy/prob_mean": 0.75 + 0.1 * progress, "clip/low_frac": 0.002, "clip/high_frac": 0.006,
        "clip/high_frac_last_epoch": 0.006, "clip/high_prob_mean": 0.12 + noise[4], "clip/high_prob_max": 0.6,
        "sampling/rounds": 1 / (1 - waste), "sampling/groups_generated": 32 / (1 - waste), "sampling/groups_kept": 32,
        "sampling/tokens_filtered_frac": waste * 0.8, "sampling/tokens_surplus_frac": waste * 0.2,
        "sampling/tokens_wasted_frac": waste, "sampling/empty_steps": 0, "optim/grad_norm": 0.5 + 10 * abs(noise[5]),
        "optim/grad_noise": 1 + progress, "optim/lr": 1e-4, "reward/length_penalty": -0.05,
        "reward/verifier_timeout_frac": 0.0, "reward/verifier_error_frac": 0.0,
    }  # fmt: skip


def _questions(file: Path, row: Mapping[str, Any], questions: int, samples: int, seed: int) -> None:
    """One row a sample; a question's difficulty is the same in every run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    difficulty = np.random.default_rng(5).normal(0, 0.2, questions)
    chance = np.clip(row["eval/chain_sum/avg@4"] + difficulty - difficulty.mean(), 0, 1)
    correct = np.random.default_rng([seed, 3, row["step"]]).random((questions, samples)) < chance[:, None]
    index = np.indices((questions, samples)).reshape(2, -1)
    pd.DataFrame(
        {"problem_id": [f"p{q:03d}" for q in index[0]], "sample_index": index[1], "correct": correct.reshape(-1)}
    ).to_parquet(file)
