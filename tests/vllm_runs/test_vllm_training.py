"""Training runs that sample with vLLM, as a user starts them."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
import torch
from command_line import run_python

TINY = (
    "+experiment=ablate_clip_higher", "rollout=vllm", "rollout.vllm.kv_cache_gb=0.25", "task.base.stages.0.updates=150",
    "algorithm.num_prompts=8", "algorithm.minibatch_prompts=4", "algorithm.samples_per_prompt=8",
    "task.num_heldout=10", "evaluation.samples=2", "logger.rollouts_every=1",
)  # fmt: skip
STEPS = "budget.steps=25"
"""Of both starts, because a study registers its budget; enough for the signal to come before the end."""
RUN = Path("runs") / "ablate_clip_higher" / "dapo-clip_higher" / "seed_0"
MODEL = Path(os.environ.get("DAPO_LIT_SMOLLM2", Path(__file__).parents[2] / "models" / "smollm2_135m"))


def rows_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def check_agreement(row: dict) -> None:
    """Engine and trainer compute in float32 and differ by rounding alone: with stale weights by far more."""
    assert 0 <= row["mismatch/kl"] < 1e-8
    assert 0 < row["mismatch/prob_diff_max"] < 1e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory, cache) -> Path:
    """Where a run was interrupted in a step and resumed to its end."""
    tmp_path = tmp_path_factory.mktemp("vllm")
    command = [sys.executable, "-m", "dapo_lit.train", *TINY, STEPS]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        metrics, deadline = tmp_path / RUN / "metrics.jsonl", time.monotonic() + 400
        while started.poll() is None and not (metrics.is_file() and metrics.read_text().count("\n") > 2):
            assert time.monotonic() < deadline, "no second step within 400 s"
            time.sleep(0.05)
        started.send_signal(signal.SIGTERM)
        stdout, stderr = started.communicate(timeout=120)
    assert started.returncode == 0, stderr
    assert "stopped on request after step" in stdout
    assert rows_of(tmp_path / RUN)[-1]["step"] >= 2

    resumed = run_python(*TINY, STEPS, "resume=true", cwd=tmp_path, timeout=400)
    assert resumed.returncode == 0, resumed.stderr
    assert "continuing from" in resumed.stdout
    return tmp_path


def test_ablate_clip_higher_trains_is_interrupted_and_resumed(folder):
    assert json.loads((folder / RUN / "DONE.json").read_text())["status"] == "finished"
    rows = rows_of(folder / RUN)
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert {"eval/discovery/avg@2", "eval/discovery/entropy"} <= rows[0].keys() & rows[-1].keys()
    for before, row in pairwise(rows):
        check_agreement(row)
        assert row["tokens_generated"] > before["tokens_generated"]
        assert row["sampling/groups_kept"] >= 8
    rollouts = pd.read_parquet(folder / RUN / "rollouts" / f"step_{len(rows) - 1:06d}.parquet")
    assert rollouts.groupby(["problem_id", "attempt"]).size().eq(8).all()
    assert (folder / RUN / "run.html").is_file()


def test_smollm2_learns_a_step_of_arithmetic_and_the_engine_samples_from_what_it_learned(tmp_path):
    if not (MODEL / "config.json").is_file():
        pytest.skip(f"SmolLM2-135M is not in {MODEL}: run `make model`, or name its folder in DAPO_LIT_SMOLLM2")
    ran = run_python(
        "+experiment=smollm2_arithmetic", "rollout=vllm", f"policy.path={MODEL}", "rollout.vllm.kv_cache_gb=0.5",
        "algorithm.num_prompts=2", "algorithm.minibatch_prompts=1", "algorithm.optimizer.warmup_steps=0",
        "budget.steps=2", "task.num_heldout=2", "evaluation.samples=1", "logger.rollouts_every=1",
        cwd=tmp_path, timeout=400,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    run = tmp_path / "runs" / "smollm2_arithmetic" / "dapo" / "seed_0"
    assert "Answer: " in (run / "run.html").read_text()  # its completions
    _, first, second = rows_of(run)
    check_agreement(first)
    check_agreement(second)  # after an update of 1e-5: weights of the step before would be 1e-3 nats off
    assert second["time/sync_s"] > 0
    state = torch.load(next((run / "checkpoints").glob("*.ckpt")), weights_only=False)["state_dict"]
    assert any(name.endswith("q_proj.weight") for name in state)
