"""vLLM in a process of its own, and a run that survives its end. Its samples: test_vllm_engine.py."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import Command
from transformers import PreTrainedModel
from vllm_case import (
    CONFIG,
    EOS,
    SETTINGS,
    check_new_weights,
    check_withdrawn_go_on,
    content,
    random_model,
    requests,
)

from dapo_lit.engines.protocol import EngineError, Sampling, run_to_end
from dapo_lit.engines.vllm_engine import process
from dapo_lit.engines.vllm_engine.process import VllmProcessEngine

GIVEN = {"eos_ids": [EOS], "dtype": torch.float32, "settings": SETTINGS}
SAMPLING = Sampling(max_response_tokens=30)


@pytest.fixture
def model() -> PreTrainedModel:
    return random_model(CONFIG)


@pytest.fixture(scope="module")
def engine(process_engine: VllmProcessEngine) -> VllmProcessEngine:
    return process_engine


def test_after_a_change_of_any_tensor_the_engine_samples_from_the_new_weights(engine, model):
    check_new_weights(engine, model)


def test_withdrawn_responses_go_on_with_their_tokens_log_probs_and_versions(engine, model):
    steps = iter(range(100))
    partial = check_withdrawn_go_on(engine, model, requests(group=1), 30, lambda stream: next(steps) == 6)
    assert all(len(before.response_ids) for before in partial)


def test_weights_in_16_bits_arrive_as_they_are(engine, model):
    halves = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
    found = []
    for given in (halves, {name: tensor.float() for name, tensor in halves.items()}):
        engine.sync_weights(given.items(), 1)
        found.append(content([*engine.generate(requests(), SAMPLING)]))
    assert found[0] == found[1]


def test_a_tensor_that_is_not_sent_is_named_and_the_next_sync_is_whole(engine, model):
    left_out = "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(ValueError, match=f"{left_out} is missing"):
        engine.sync_weights([(n, t) for n, t in model.state_dict().items() if n != left_out], 3)
    with pytest.raises(RuntimeError, match="sync_weights"):
        engine.open(SAMPLING)
    check_new_weights(engine, model)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_of_a_terminal_or_job_leaves_the_end_to_the_run(engine, model, number):
    pid = engine.pid
    engine.sync_weights(model.state_dict().items(), 1)
    os.kill(pid, number)
    assert len([*engine.generate(requests(), SAMPLING)]) == len(requests())
    assert engine.pid == pid


def test_a_process_that_is_killed_or_hangs_is_started_again_with_the_same_weights_and_requests(
    engine, model, monkeypatch, caplog
):
    engine.sync_weights(model.state_dict().items(), 10)
    whole = content([*engine.generate(requests(), SAMPLING)])
    stream = engine.open(SAMPLING)
    stream.submit(requests())
    ended = [sample for _ in range(5) for sample in stream.step()]
    with torch.no_grad():
        for parameter in model.parameters():  # as an update does while steps are sampled ahead
            parameter.add_(torch.randn_like(parameter))
    with monkeypatch.context() as patch:
        patch.setattr(process, "ANSWER_S", 10.0)  # of the process that is started now
        os.kill(engine.pid, signal.SIGKILL)
        ended += run_to_end(stream)
    assert content(ended) == whole
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "SIGKILL" in said
    monkeypatch.setattr(process, "CLOSE_S", 0.1)
    os.kill(engine.pid, signal.SIGSTOP)
    # They are more than the pipe holds: without a limit the trainer would wait in the middle of a tensor.
    engine.sync_weights(model.state_dict().items(), 11)
    assert len([*engine.generate(requests(), SAMPLING)]) == len(requests())
    assert "it takes nothing from its pipe" in caplog.text


def test_an_error_of_vllm_is_a_failure_too_and_the_second_under_the_same_weights_ends_the_run(engine, model, caplog):
    engine.sync_weights(model.state_dict().items(), 20)
    stream = engine.open(SAMPLING)
    stream.submit(requests())
    stream.step()
    engine.sync_weights(model.state_dict().items(), 21)  # while requests hold the prefix cache
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "prefix cache" in said
    stream = engine.open(SAMPLING)
    stream.submit(requests())
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="SIGKILL"):
        stream.step()
    check_new_weights(engine, model)  # other weights, and a new start


def test_what_vllm_refuses_at_its_start_is_said():
    with pytest.raises(ValueError, match="kv_cache_gb"):
        VllmProcessEngine(CONFIG, **GIVEN | {"settings": replace(SETTINGS, kv_cache_gb=1e-6)})


def test_a_run_goes_on_when_its_engine_is_killed_and_no_engine_outlives_a_run_that_is(tmp_path):
    metrics = tmp_path / "runs/dapo/dapo/seed_0/metrics.jsonl"

    def steps() -> list[dict]:
        lines = metrics.read_text().splitlines() if metrics.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    started = Command(
        "+experiment=dapo", "+regime=joint", "algorithm.num_prompts=8", "algorithm.minibatch_prompts=4",
        "algorithm.samples_per_prompt=8", "task.num_heldout=10", "evaluation.samples=1", "rollout=vllm",
        "rollout.vllm.placement=process", "rollout.vllm.kv_cache_gb=0.25", "budget.steps=4000", "logger.progress=none",
        cwd=tmp_path,
    )  # fmt: skip
    wait_for(lambda: len(steps()) > 3 or started.poll() is not None, 300)
    assert started.poll() is None, started.output("stderr")
    os.kill(engine_of(started.pid), signal.SIGKILL)
    at = len(steps())
    wait_for(lambda: len(steps()) > at + 2 or started.poll() is not None, 300)
    assert started.poll() is None, started.output("stderr")
    second = engine_of(started.pid)
    started.send_signal(signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{second}").exists(), 30)
    assert "SIGKILL" in started.output("stdout") + started.output("stderr")
    assert [row["step"] for row in steps()] == [*range(len(steps()))]
    # Engine and trainer compute in float32 and differ by rounding alone: with stale weights by far more.
    assert all(0 < row["mismatch/prob_diff_max"] < 1e-3 for row in steps()[1:])


def engine_of(pid: int) -> int:
    """The process of vLLM below a run."""
    below = [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    [engine] = [child for child in below if "process_main" in Path(f"/proc/{child}/cmdline").read_text()]
    return engine


def wait_for(condition, within_s: float) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, f"not within {within_s:g} s"
        time.sleep(0.05)
