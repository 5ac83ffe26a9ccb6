"""Servers that cannot be used are told before training, without vLLM installed; tests/vllm_runs runs a real one."""

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from local_server import Handler, serving
from tiny_config import CONFIG

from dapo_lit.engines.vllm_server.client import ServerClient
from dapo_lit.engines.vllm_server.command import ServerSettings
from dapo_lit.engines.vllm_server.engine import VllmServerEngine
from dapo_lit.ranks import Ranks


def refused(url: str, folder: Path, ranks: Ranks | None = None, **changes: Any) -> str:
    settings = ServerSettings((url,), folder, max_model_tokens=48, max_batch_size=10, **changes)
    with pytest.raises(ValueError) as told:
        VllmServerEngine(CONFIG, eos_ids=[1], dtype=torch.bfloat16, settings=settings, ranks=ranks or Ranks())
    return str(told.value)


@pytest.fixture
def served():
    """An HTTP server that answers GET as it is told: what servers of other versions and settings say."""
    answers: dict[str, object] = {}

    class Told(Handler):
        def get(self, path: str) -> None:
            body = json.dumps(answers.get(path, {"detail": "Not Found"})).encode()
            self.answer(body, 200 if path in answers else 404)

    with serving(Told) as url:
        yield url, answers


def test_a_server_that_does_not_answer_is_told_with_the_command_that_starts_it(tmp_path, served, monkeypatch):
    url, _ = served
    gone = "http://127.0.0.1:9"  # the port of discard: nothing listens
    message = refused(gone, tmp_path)
    [model] = tmp_path.glob("model_*")
    assert json.loads((model / "config.json").read_text())["vocab_size"] == 64
    assert (
        f"VLLM_SERVER_DEV_MODE=1 VLLM_USE_V2_MODEL_RUNNER=0 vllm serve {model} "
        "--host 127.0.0.1 --port 9 --load-format dummy "
        "--skip-tokenizer-init --tokens-only --dtype bfloat16 --max-model-len 48 --max-num-seqs 10 "
        "--logprobs-mode processed_logprobs --no-async-scheduling --disable-uvicorn-access-log "
        "--middleware dapo_lit.engines.vllm_server.guard.TokenGuard\n" in message
    )
    assert "head_dtype" in refused(gone, tmp_path, fp32_head=True)
    assert "--enforce-eager" not in message
    assert " --enforce-eager" in refused(gone, tmp_path, enforce_eager=True)
    assert "answers 404" in refused(url, tmp_path)  # something else listens there


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_printed_command_binds_to_one_address_and_asks_for_a_key(tmp_path, monkeypatch, host):
    for key in ("", "a-key-of-this-run"):
        monkeypatch.setenv("VLLM_API_KEY", key)
        message = refused(f"http://{host}:9", tmp_path)
        assert f" --host {host} --port 9 " in message
        assert " --middleware dapo_lit.engines.vllm_server.guard.TokenGuard" in message
        assert "export VLLM_API_KEY=" in message
        assert "a-key-of-this-run" not in message


@pytest.mark.parametrize("host", ["gpu-node-1", "10.0.0.7", "[2001:db8::1]"])
def test_servers_of_another_machine_are_not_used_without_a_key(tmp_path, monkeypatch, host):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    message = refused(f"http://{host}:9", tmp_path)
    assert message.startswith(f"rollout.vllm.server.urls: http://{host}:9 ")
    assert "export VLLM_API_KEY=" in message
    assert [*tmp_path.iterdir()] == []


def test_servers_of_other_versions_models_lengths_and_settings_are_told_apart(tmp_path, served):
    url, answers = served
    answers["/version"] = {"version": "0.31.1"}
    assert "0.31.1" in refused(url, tmp_path)
    answers["/version"] = {"version": "0.32.0"}
    answers["/v1/models"] = {"data": [{"root": "Qwen/Qwen2.5-7B", "max_model_len": 48}]}
    assert "Qwen/Qwen2.5-7B" in refused(url, tmp_path)
    [model] = tmp_path.glob("model_*")
    answers["/v1/models"] = {"data": [{"root": str(model), "max_model_len": 47}]}
    assert "--max-model-len" in refused(url, tmp_path)
    answers["/v1/models"] = {"data": [{"root": str(model), "max_model_len": 48}]}
    assert "VLLM_SERVER_DEV_MODE=1" in refused(url, tmp_path)
    settings = {"dtype": "torch.float16", "logprobs_mode": "processed_logprobs"}
    found = {"model_config": settings, "device_config": {"device": "cpu"}}
    found["scheduler_config"] = {"enable_chunked_prefill": True, "async_scheduling": False}
    answers["/server_info"] = {"vllm_config": found, "vllm_env": {}}
    assert "dtype=torch.float16" in refused(url, tmp_path)
    settings |= {"dtype": "torch.bfloat16", "logprobs_mode": "raw_logprobs"}
    assert "logprobs_mode=raw_logprobs" in refused(url, tmp_path)
    settings["logprobs_mode"] = "processed_logprobs"
    assert "enable_chunked_prefill=True" in refused(url, tmp_path)


def test_a_connection_that_was_idle_is_not_used_again(monkeypatch):
    """vLLM closes idle connections: a server that hangs up on the second request of each stands for that."""

    class Once(Handler):
        answered = False

        def post(self, path: str) -> None:
            self.close_connection = self.answered
            if not self.answered:
                self.answered = True
                self.answer()

    monkeypatch.setattr("dapo_lit.engines.vllm_server.client.IDLE_S", 0.2)
    with serving(Once) as url, closing(ServerClient([url])) as client:
        assert client.post("/resume", {url: None}) == [{}]
        time.sleep(0.5)
        assert client.post("/resume", {url: None}) == [{}]
