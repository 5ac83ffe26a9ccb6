"""Engines and servers of vLLM that are killed or stopped while a run trains: it ends equal in every bit, or by name."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from threading import Thread

import disturbances
import pytest
import torch
from command_line import SMALL
from disturbances import difference, num_rows, signal_sweep, uninterrupted

from dapo_lit.build.parts import Parts
from dapo_lit.config import ConfigError
from dapo_lit.engines.protocol import EngineError
from dapo_lit.engines.vllm_engine.tensors import ServedModel
from dapo_lit.engines.vllm_server import client
from dapo_lit.engines.vllm_server.command import write_config
from dapo_lit.train import train

CASES = [(hit, number) for hit in (1, 2) for number in (signal.SIGKILL, signal.SIGSTOP)]
"""All of them in `make sweeps`; a stopped one of two servers, and both killed, in `make test-vllm`."""
FAKE = Path(__file__).parents[1] / "gpu_contracts" / "fake_vllm_server.py"
FIXED = (
    "policy.architecture.hidden_size=64", "policy.name=micro_heads_of_32", "rollout=vllm", "rollout.max_batch_size=16",
    "rollout.vllm.kv_cache_gb=0.125", "algorithm.techniques.dynamic_sampling=false",
)  # fmt: skip
"""Without dynamic sampling, what is drawn does not depend on which response ends first."""


@pytest.fixture(autouse=True)
def arm(monkeypatch):
    monkeypatch.setattr(disturbances, "RUN", disturbances.RUN.parents[1] / "dapo-dynamic_sampling" / "seed_0")


def test_a_trainer_that_is_killed_with_its_engine_resumes_bit_for_bit(tmp_path, cache):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    killed.mkdir()
    _, run_s = uninterrupted(whole, (*SMALL, *FIXED))
    cases = signal_sweep(killed, whole, (*SMALL, *FIXED), [int(signal.SIGKILL)] * 3, int(time.time()), run_s)
    assert {case.outcome for case in cases} == {"resumed, equal"}, cases


class Server:
    """vLLM's routes in a process of its own, with a fake engine, whose samples follow from their seeds alone."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self, model: Path) -> None:
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32"]
        self.process = subprocess.Popen([sys.executable, FAKE, "serve", model, *place])
        while not self._answers():
            assert self.process.poll() is None
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            return bool(urllib.request.urlopen(f"{self.url}/health", timeout=5).status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize(("hit", "number"), CASES if os.environ.get("DAPO_LIT_MATRIX") else CASES[1:3])
def test_servers_killed_or_stopped_at_a_random_moment_change_no_bit(compose, tmp_path, monkeypatch, number, hit):
    """One of two: the run goes on. Both: it ends by name, and is resumed with servers that were started again."""
    monkeypatch.setattr(client, "ANSWER_S", 10.0)
    monkeypatch.setattr(client, "CONNECT_S", 5.0)
    servers = [Server(), Server()]
    at = f"rollout.vllm.server.urls=[{','.join(repr(server.url) for server in servers)}]"
    placed = (*FIXED, "rollout.vllm.placement=server", at, f"rollout.vllm.server.folder={tmp_path}", "resume=auto")
    whole, hurt = tmp_path / "whole", tmp_path / "hurt"
    model = write_config(ServedModel(Parts(compose(*placed)).policy.config).config, torch.float32, tmp_path)
    draw = random.Random(time.time())

    # a server that is silent before the first step is refused by name, and after the last none is needed
    def disturb(rows: int = draw.randint(1, 2), seconds: float = draw.uniform(0, 0.2)) -> None:
        while num_rows(hurt) < rows:
            time.sleep(0.01)
        time.sleep(seconds)
        for server in servers[:hit]:
            server.process.send_signal(number)

    try:
        for server in servers:
            server.start(model)
        train(compose(*placed, f"runs_dir={whole / 'runs'}"), [])
        disturbing = Thread(target=disturb)
        disturbing.start()
        try:
            train(compose(*placed, f"runs_dir={hurt / 'runs'}"), [])
            went_on = True
        except (EngineError, ConfigError):
            went_on = False
        disturbing.join()
        assert went_on == (hit == 1)
        if not went_on:
            for server in servers:
                server.end()
                server.start(model)
            train(compose(*placed, f"runs_dir={hurt / 'runs'}"), [])
        assert difference(hurt, whole) is None
    finally:
        for server in servers:
            server.end()
