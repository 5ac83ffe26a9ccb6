"""vLLM in a process of its own: the samples of the one in this process, and a run that survives its end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from vllm_case import (
    CONFIG,
    EOS,
    SETTINGS,
    check_episodes,
    check_new_weights,
    check_withdrawn_go_on,
    content,
    random_model,
    requests,
    turn_ends,
)

from dapo_lit.engines.protocol import EngineError, Sampling, run_to_end
from dapo_lit.engines.vllm_engine.engine import VllmEngine
from dapo_lit.engines.vllm_engine.process import VllmProcessEngine

GIVEN = {"eos_ids": [EOS], "dtype": torch.float32, "settings": SETTINGS}
SAMPLING = Sampling(max_response_tokens=30)


@pytest.fixture
def model() -> PreTrainedModel:
    return random_model(CONFIG)


@pytest.fixture(scope="module")
def engine():
    made = VllmProcessEngine(CONFIG, **GIVEN)
    yield made
    made.close()


def kill(engine: VllmProcessEngine) -> None:
    os.kill(engine.pid, signal.SIGKILL)


def test_the_samples_are_those_of_an_engine_in_this_process(engine, model):
    other = VllmEngine(CONFIG, **GIVEN)
    for each in (engine, other):
        each.sync_weights(model.state_dict().items(), 3)
    assert content([*engine.generate(requests(), SAMPLING)]) == content([*other.generate(requests(), SAMPLING)])
    assert engine.facts == {**other.facts, "placement": "process"}
    other.close()


def test_after_a_change_of_any_tensor_the_engine_samples_from_the_new_weights(engine, model):
    check_new_weights(engine, model)


def test_withdrawn_responses_go_on_with_their_tokens_log_probs_and_versions(engine, model):
    steps = iter(range(100))
    partial = check_withdrawn_go_on(engine, model, requests(group=1), 30, lambda stream: next(steps) == 6)
    assert all(len(before.response_ids) for before in partial)


def test_episodes_are_those_of_the_torch_sampler(model):
    made = VllmProcessEngine(CONFIG, **GIVEN | {"eos_ids": turn_ends(CONFIG)})
    check_episodes(made, model)
    made.close()


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


@pytest.mark.parametrize("steps", [0, 5])
def test_a_killed_process_is_started_again_with_the_same_weights_and_requests(engine, model, steps, caplog):
    engine.sync_weights(model.state_dict().items(), 10 + steps)
    whole = content([*engine.generate(requests(), SAMPLING)])
    stream = engine.open(SAMPLING)
    stream.submit(requests())
    ended = [sample for _ in range(steps) for sample in stream.step()]
    kill(engine)
    ended += run_to_end(stream)
    assert content(ended) == whole
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "SIGKILL" in said


def test_a_process_that_ends_while_the_policy_trains_is_started_again_at_the_next_sync(engine, model):
    kill(engine)
    check_new_weights(engine, model)


def test_the_second_failure_under_the_same_weights_ends_the_run(engine, model):
    engine.sync_weights(model.state_dict().items(), 20)
    stream = engine.open(SAMPLING)
    stream.submit(requests())
    kill(engine)
    stream.step()
    kill(engine)
    with pytest.raises(EngineError, match="SIGKILL"):
        stream.step()
    check_new_weights(engine, model)  # other weights, and a new start


def test_an_error_within_vllm_is_a_failure_too(engine, model, monkeypatch):
    engine.sync_weights(model.state_dict().items(), 30)
    monkeypatch.setattr("dapo_lit.engines.protocol.SampleRequest.check_length", lambda *given: None)
    stream = engine.open(Sampling(max_response_tokens=30, temperature="hot"))  # type: ignore[arg-type]
    with pytest.raises((EngineError, ValueError)):
        stream.submit(requests())
    check_new_weights(engine, model)


def test_what_vllm_refuses_at_its_start_is_said():
    wide = type(CONFIG)(**CONFIG.to_dict() | {"hidden_size": 48})  # heads of 24 dimensions
    with pytest.raises(ValueError, match="cannot load a model"):
        VllmProcessEngine(wide, **GIVEN)


def test_the_process_ends_with_a_trainer_that_is_killed(tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(
        "import sys, time\n"
        "from vllm_case import CONFIG, SETTINGS\n"
        "from dapo_lit.engines.vllm_engine.process import VllmProcessEngine\n"
        "import torch\n"
        "engine = VllmProcessEngine(CONFIG, eos_ids=[3], dtype=torch.float32, settings=SETTINGS)\n"
        "print(engine.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as p:
        pid = int(p.stdout.readline())
        p.kill()
    until = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


def test_a_run_goes_on_when_its_engine_is_killed(tmp_path):
    command = [
        sys.executable, "-m", "dapo_lit.train", "+experiment=dapo", "+regime=joint", "algorithm.num_prompts=8",
        "algorithm.minibatch_prompts=4", "algorithm.samples_per_prompt=8", "task.num_heldout=10",
        "evaluation.samples=1", "rollout=vllm", "rollout.vllm.placement=process", "rollout.vllm.kv_cache_gb=0.25",
        "budget.steps=12", "logger.progress=none",
    ]  # fmt: skip
    metrics = tmp_path / "runs/dapo/dapo/seed_0/metrics.jsonl"
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as started:
        until = time.monotonic() + 300
        while not (metrics.is_file() and metrics.read_text().count("\n") > 3):
            assert started.poll() is None, started.communicate()[0]
            assert time.monotonic() < until, "no third step within 300 s"
            time.sleep(0.05)
        [engine] = [pid for pid in children(started.pid) if "process_main" in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(engine, signal.SIGKILL)
        said, _ = started.communicate(timeout=300)
    assert started.returncode == 0, said
    assert "SIGKILL" in said
    found = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["step"] for row in found] == list(range(13))
    # Engine and trainer compute in float32 and differ by rounding alone: with stale weights by far more.
    assert all(0 < row["mismatch/prob_diff_max"] < 1e-3 for row in found[1:])


def children(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
