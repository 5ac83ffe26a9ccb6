"""Several ranks on several servers: who gives orders, who samples where, and what happens when one dies."""

import threading
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Qwen2Config

pytest.importorskip("vllm.entrypoints", reason="make test-gpu-contracts runs these")

from fake_vllm_server import FakeGroup, FakeServer

from dapo_lit.engines.protocol import SampleKey, SampleRequest, Sampling, run_to_end
from dapo_lit.engines.vllm_engine.tensors import ServedModel
from dapo_lit.engines.vllm_server import client, transfer
from dapo_lit.engines.vllm_server.client import ServerError
from dapo_lit.engines.vllm_server.command import ServerSettings, write_config
from dapo_lit.engines.vllm_server.engine import VllmServerEngine
from dapo_lit.ranks import Ranks

CONFIG = Qwen2Config(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=256, tie_word_embeddings=True,
)  # fmt: skip
SYNC = ["pause abort", "update_config", "reload_weights", "version", "resume", "reset_prefix_cache"]


@dataclass(frozen=True)
class ThreadRanks(Ranks):
    """Ranks that are threads."""

    barrier: Any = None
    box: Any = None

    def gather(self, value: Any) -> list[Any]:
        self.box[self.rank] = value
        self.barrier.wait(20)
        found = list(self.box)
        self.barrier.wait(20)
        return found


def on_ranks(size: int, work: Callable[[ThreadRanks], Any]) -> list[Any]:
    """What `work` returns on each rank, each a thread."""
    barrier, box, found, errors = threading.Barrier(size), [None] * size, [None] * size, []

    def one(rank: int) -> None:
        try:
            found[rank] = work(ThreadRanks(rank, size, barrier=barrier, box=box))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return found


def engine(servers: list[FakeServer], folder, ranks: Ranks, **changes: Any) -> VllmServerEngine:
    settings = ServerSettings(tuple(s.url for s in servers), folder, max_model_tokens=64, max_batch_size=8, **changes)
    for server in servers:
        server.model = server.model or str(write_config(ServedModel(CONFIG).config, torch.bfloat16, folder))
    return VllmServerEngine(CONFIG, eos_ids=[1], dtype=torch.bfloat16, settings=settings, ranks=ranks)


def tensors(made: VllmServerEngine) -> list[tuple[str, torch.Tensor]]:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return list(AutoModelForCausalLM.from_config(CONFIG).state_dict().items())


def requests(rank: int, groups: int = 2) -> list[SampleRequest]:
    return [SampleRequest(SampleKey(1, f"p{rank}-{g}", 0, j), (5, 6, 7)) for g in range(groups) for j in range(2)]


@pytest.fixture
def servers():
    with ExitStack() as stack:
        made = [FakeServer(), FakeServer()]
        for server in made:
            stack.callback(server.kill)
        yield made


@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_server_gets_its_orders_once_whatever_the_number_of_ranks(size, servers, tmp_path):
    """4 ranks on 2 servers: ranks 0 and 1 give the orders, 2 and 3 share the servers with them."""

    def work(ranks: ThreadRanks) -> tuple[int, int]:
        made = engine(servers, tmp_path, ranks)
        assert made.concurrency == 2 * 8 // size  # what the two servers decode at once is divided, too
        try:
            for version in range(2):
                made.sync_weights(tensors(made), version)
                stream = made.open(Sampling(max_response_tokens=3))
                stream.submit(requests(ranks.rank))
                samples = list(run_to_end(stream))
            return len(samples), len({(s.key) for s in samples})
        finally:
            ranks.gather(None)
            made.close()

    assert on_ranks(size, work) == [(4, 4)] * size
    for server in servers:
        assert server.engine.events == SYNC * 2
    assert [len(server.engine.sampled) for server in servers] == [
        2 * 4 * size // 2
    ] * 2  # two steps of four samples a rank, halved


def test_a_step_completes_on_the_other_server_when_one_is_killed_and_the_killed_one_returns(servers, tmp_path, capsys):
    made = engine(servers, tmp_path, Ranks())
    try:
        made.sync_weights(tensors(made), 0)
        for server in servers:
            server.engine.token_s = 0.02
        stream = made.open(Sampling(max_response_tokens=20))
        stream.submit(requests(0))
        while not any(under_way.ids and under_way.server == 0 for under_way in stream._pending.values()):
            stream.step()
        servers[0].kill()
        samples = list(run_to_end(stream))
        assert sorted(s.key.sample_index for s in samples) == [0, 0, 1, 1]
        assert all(len(s.response_ids) == 20 for s in samples)  # nothing of the broken responses is kept twice
        assert len(servers[1].engine.sampled) == 4  # its own two, and the two of the other
        assert capsys.readouterr().out.count("a server is lost") == 1
        seeds = [{body["sampling_params"]["seed"] for body in server.engine.sampled} for server in servers]
        assert seeds[0] < seeds[1]  # drawn again from the same noise
        assert len(seeds[1]) == 4  # each sample from noise of its own
        servers[0].engine.label = "default"
        servers[0].start()
        made.sync_weights(tensors(made), 1)
        assert "answers again" in capsys.readouterr().out
        stream = made.open(Sampling(max_response_tokens=2))
        stream.submit(requests(1))
        assert len(list(run_to_end(stream))) == 4
        assert len(servers[0].engine.sampled) == 4  # two before, two again
    finally:
        made.close()


def test_the_requests_of_a_server_that_falls_silent_start_anew_at_the_other(servers, tmp_path, monkeypatch):
    made = engine(servers, tmp_path, Ranks())
    try:
        made.sync_weights(tensors(made), 0)
        monkeypatch.setattr(client, "ANSWER_S", 0.3)
        servers[0].engine.token_s = 60.0  # its process is stopped, or its engine hangs
        stream = made.open(Sampling(max_response_tokens=3))
        stream.submit(requests(0))
        assert len(list(run_to_end(stream))) == 4
        assert [len(server.engine.sampled) for server in servers] == [2, 4]
        assert made._servers.lost == {0}
    finally:
        made.close()


def test_a_server_that_stays_away_is_left_out_by_every_rank_and_none_left_is_an_error(servers, tmp_path):
    killed = threading.Event()

    def work(ranks: ThreadRanks) -> list[int]:
        made = engine(servers, tmp_path, ranks)
        try:
            made.sync_weights(tensors(made), 0)
            ranks.gather(None)
            if ranks.rank == 0:
                servers[0].kill()
                killed.set()
            assert killed.wait(20)
            counts = []
            for version in (1, 2):
                stream = made.open(Sampling(max_response_tokens=2))
                stream.submit(requests(ranks.rank))
                counts.append(len(list(run_to_end(stream))))
                made.sync_weights(tensors(made), version)
            if ranks.rank == 0:
                servers[1].kill()
            ranks.gather(None)
            stream = made.open(Sampling(max_response_tokens=2))
            stream.submit(requests(ranks.rank))
            with pytest.raises(ServerError):
                list(run_to_end(stream))
            with pytest.raises(ServerError, match="no server is left"):
                made.sync_weights(tensors(made), 3)
            return counts
        finally:
            made.close()

    assert on_ranks(4, work) == [[4, 4]] * 4


def test_weights_over_nccl_reach_every_worker_in_the_trainers_order(tmp_path, monkeypatch):
    """Two servers of 2 and 4 GPUs, in vLLM's own messages; only the communicator is replaced."""
    group = FakeGroup()
    monkeypatch.setattr(transfer, "DEVICE", "cpu")
    monkeypatch.setattr(transfer, "PACKED", False)  # packing needs streams of a GPU
    monkeypatch.setattr(transfer.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(transfer.torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(
        "vllm.distributed.weight_transfer.nccl_engine.open_trainer_endpoint", group.open_trainer_endpoint
    )
    servers = [FakeServer(gpus, group) for gpus in (2, 4)]
    made = engine(servers, tmp_path, Ranks(), transfer="nccl")
    try:
        assert sorted(group.offsets) == [1, 3]  # rank 0 is the trainer, then the workers of each server
        assert group.world == {7}
        given = dict(tensors(made))
        for version in range(2):
            made.sync_weights(given.items(), version)
        for server in servers:
            assert set(server.engine.loaded) == set(given)
            for name, tensor in server.engine.loaded.items():
                assert torch.equal(tensor, given[name].to(torch.bfloat16)), name
            assert server.engine.events.count("update") == 2
            assert server.engine.events[0] == "init"
        servers[1].kill()
        made._servers.lose(1, ServerError("gone"))
        with pytest.raises(ServerError, match="cannot be left out of transfer=nccl"):
            made.sync_weights(given.items(), 3)
    finally:
        made.close()
        servers[0].kill()


def test_a_guarded_server_takes_orders_only_with_the_token(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    server = FakeServer(guarded=True)
    made = engine([server], tmp_path, Ranks())
    try:
        made.sync_weights(tensors(made), 0)
        assert server.engine.events == SYNC
        assert "--middleware dapo_lit.engines.vllm_server.guard.TokenGuard" in made.command(server.url)
        assert "secret" not in made.command(server.url)
        monkeypatch.setenv("VLLM_API_KEY", "another")
        with pytest.raises(ValueError, match="answers 401"):
            engine([server], tmp_path, Ranks())
        with urllib.request.urlopen(f"{server.url}/health", timeout=5) as health:
            assert health.status == 200
        assert server.engine.events == SYNC
    finally:
        made.close()
        server.kill()
