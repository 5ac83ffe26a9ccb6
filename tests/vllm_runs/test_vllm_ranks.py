"""Two processes that train a policy in shards and sample with vLLM in their own memory, as a user starts them."""

import json

import pandas as pd
import pytest
from command_line import run_python

RUN = (
    "+experiment=four_sums", "policy.architecture.hidden_size=64", "policy.name=micro_heads_of_32", "rollout=vllm",
    "rollout.vllm.kv_cache_gb=0.125", "trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2",
    "trainer.sharding.dtype=null", "trainer.threads=1", "algorithm.num_prompts=6", "algorithm.minibatch_prompts=3",
    "budget.steps=2", "evaluation.samples=2", "logger.progress=none", "logger.rollouts_every=1",
)  # fmt: skip


@pytest.mark.parametrize("per_engine", [1, 2])
def test_the_engines_of_two_ranks_sample_from_the_shards_that_were_just_updated(tmp_path, cache, per_engine):
    """1: each rank has an engine of its own and samples other groups; 2: they share one, and both have its samples."""
    done = run_python(*RUN, f"rollout.vllm.tensor_parallel={per_engine}", cwd=tmp_path, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "four_sums" / "dapo" / "seed_0"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    for row in rows[1:]:  # rounding alone; weights of before the updates are off by far more
        assert 0 < row["mismatch/prob_diff_max"] < 1e-5
        assert row["optim/grad_norm"] > 0.1
    groups = pd.read_parquet(run / "rollouts" / "step_000002.parquet").groupby(["problem_id", "attempt"])
    assert groups.size().eq(4).all()
    responses = groups["response"].agg(tuple)
    assert responses.nunique() > len(responses) / 2  # ranks that sampled alike would give each group twice
