"""Training runs that sample with vLLM, each in processes of its own."""

import json
import os
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from command_line import Command, run_cli, run_ranks

from dapo_lit.build.components import RunComponents

STEPS = 10
"""Enough for a signal to come before the end."""
TINY = (  # from the base policy that comes with the package: to pre-train one takes longer than the run
    "+experiment=dapo", "+regime=joint", "study_name=ablate_clip_higher", "algorithm.techniques.clip_higher=false",
    "rollout=vllm", "rollout.vllm.kv_cache_gb=0.25", "reward.rule=sympy",  # whose workers are processes
    "algorithm.num_prompts=8", "algorithm.minibatch_prompts=4", "algorithm.samples_per_prompt=8",
    "task.num_heldout=10", "evaluation.samples=2", "logger.rollouts_every=1", "replay.record=[2]",
    f"budget.steps={STEPS}", "logger.progress=none",
)  # fmt: skip
MODEL = Path(os.environ.get("DAPO_LIT_SMOLLM2", Path(__file__).parents[2] / "models" / "smollm2_135m"))
RUN = Path("runs") / "ablate_clip_higher" / "dapo-clip_higher" / "seed_0"


def rows_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def check_agreement(row: dict) -> None:
    """Engine and trainer compute in float32 and differ by rounding alone: with stale weights by far more."""
    assert 0 <= row["mismatch/kl"] < 1e-8
    assert 0 < row["mismatch/prob_diff_max"] < 1e-3


def descendants(pid: int) -> list[int]:
    """The processes below one."""
    try:
        children = [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except FileNotFoundError:
        return []
    return [*children, *(below for child in children for below in descendants(child))]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, cache) -> Path:
    """A folder with a run that was stopped by a signal and resumed."""
    folder = tmp_path_factory.mktemp("interrupted")
    started = Command(*TINY, cwd=folder)
    metrics, deadline = folder / RUN / "metrics.jsonl", time.monotonic() + 400
    while started.poll() is None and not (metrics.is_file() and metrics.read_text().count("\n") > 2):
        assert time.monotonic() < deadline, "no second step within 400 s"
        time.sleep(0.05)
    below = descendants(started.pid)
    assert below  # the workers of rewards at least
    started.send_signal(signal.SIGTERM)
    done = started.wait(120)
    assert done.returncode == 0, done.stderr
    until = time.monotonic() + 30
    while alive := [pid for pid in below if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < until, f"processes of a run with vLLM live on: {alive}"
        time.sleep(0.1)
    stopped_at = rows_of(folder / RUN)[-1]["step"]
    assert 2 <= stopped_at < STEPS

    resumed = run_cli(*TINY, "resume=true", cwd=folder, timeout=400)
    assert resumed.returncode == 0, resumed.stderr
    return folder


def test_a_run_with_vllm_is_interrupted_and_resumed_and_samples_from_the_weights_just_updated(interrupted):
    done = json.loads((interrupted / RUN / "DONE.json").read_text())
    assert done["status"] == "finished"
    assert (done["engine"]["runner"], done["engine"]["async_scheduling"]) == ("V1", False)
    rows = rows_of(interrupted / RUN)
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    for row in rows[1:]:
        check_agreement(row)
    rollouts = pd.read_parquet(interrupted / RUN / "rollouts" / f"step_{STEPS:06d}.parquet")
    assert rollouts.groupby(["problem_id", "attempt"]).size().eq(8).all()


def test_a_run_with_vllm_is_forked_and_the_fork_ends_with_its_page(interrupted):
    fork = ("fork.horizon=1", "study.arms=[dapo]", "study.seeds=[0]", "study.workers=1")
    done = run_cli("-m", "+study=fork", f"fork.run={RUN}", *fork, cwd=interrupted, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    forks = interrupted / "runs" / "fork" / "ablate_clip_higher_dapo-clip_higher_seed_0"
    for arm in ("dapo", "dapo-clip_higher"):
        (row,) = rows_of(forks / "step_000002" / arm / "seed_0")
        assert row["step"] == 2
        check_agreement(row)
    assert "From here on" in (forks / "report.html").read_text()


def test_a_technique_is_probed_with_vllm_on_a_model_and_problems_of_ones_own(interrupted, compose):
    policy = RunComponents(compose(*TINY, small=False)).policy_folder
    (interrupted / "sums.csv").write_text("problem,answer\n" + "".join(f"{a}+2=,{a + 2}\n" for a in range(1, 8)))
    done = run_cli(
        "dynamic_sampling", "--model", str(policy), "--data", "sums.csv", "--plan", "rollout=vllm",
        "rollout.vllm.kv_cache_gb=0.25", "task.template=plain", "reward.extraction=hash", "task.max_prompt_tokens=24",
        "task.max_response_tokens=24", "algorithm.overlong.cache_tokens=6", "algorithm.num_prompts=4",
        "algorithm.minibatch_prompts=2", "algorithm.samples_per_prompt=8", "study.underpowered=true",
        module="dapo_lit.ablate", cwd=interrupted, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was started. To start it:\npython" in done.stdout


def test_smollm2_learns_a_step_of_arithmetic_and_the_engine_samples_from_what_it_learned(tmp_path):
    if not (MODEL / "config.json").is_file():
        pytest.skip(f"SmolLM2-135M is not in {MODEL}: run `make model`, or name its folder in DAPO_LIT_SMOLLM2")
    ran = run_cli(
        "+experiment=smollm2_arithmetic", "rollout=vllm", f"policy.path={MODEL}", "rollout.vllm.kv_cache_gb=0.5",
        "algorithm.num_prompts=2", "algorithm.minibatch_prompts=1", "algorithm.samples_per_prompt=4",
        "task.max_response_tokens=24", "algorithm.overlong.cache_tokens=8", "algorithm.optimizer.warmup_steps=0",
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


RANKS = (
    "+experiment=four_sums", "policy.architecture.hidden_size=64", "policy.name=micro_heads_of_32", "rollout=vllm",
    "rollout.vllm.kv_cache_gb=0.125", "trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2",
    "trainer.sharding.dtype=null", "trainer.threads=1", "algorithm.num_prompts=6", "algorithm.minibatch_prompts=3",
    "budget.steps=2", "evaluation.samples=2", "logger.progress=none", "logger.rollouts_every=1",
    "turns.environment=user_environments.speaks", "turns.max_turns=3", "turns.max_observation_tokens=8",
    "turns.deadline_s=60",
)  # fmt: skip
ENVIRONMENTS = Path(__file__).parents[1] / "environments"


@pytest.mark.parametrize("per_engine", [1, 2])
def test_the_engines_of_two_ranks_sample_from_the_shards_that_were_just_updated(
    tmp_path, cache, monkeypatch, per_engine
):
    """1: each rank has an engine of its own and samples other groups, and one command starts both; 2: they share one,
    both have its samples, and they are started as torchrun does it.

    With an environment, so that what each rank is given also depends on when answers come.
    """
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ENVIRONMENTS), os.environ.get("PYTHONPATH", "")]))
    command = (*RANKS, f"rollout.vllm.tensor_parallel={per_engine}")
    run_ranks(per_engine, *command, cwd=tmp_path, timeout=500)  # of one process the launcher makes two
    run = tmp_path / "runs" / "four_sums" / "dapo" / "seed_0"
    rows = rows_of(run)
    assert [row["step"] for row in rows] == [0, 1, 2]
    for row in rows[1:]:  # rounding alone; weights of before the updates are off by far more
        assert 0 < row["mismatch/prob_diff_max"] < 1e-5
        assert row["optim/grad_norm"] > 0.1
        assert row["turns/num_mean"] > 1.1
    groups = pd.read_parquet(run / "rollouts" / "step_000002.parquet").groupby(["problem_id", "attempt"])
    assert groups.size().eq(4).all()
    responses = groups["response"].agg(tuple)
    assert responses.nunique() > len(responses) / 2  # ranks that sampled alike would give each group twice
