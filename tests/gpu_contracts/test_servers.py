"""Several ranks on several servers: who gives orders, who samples where, and what happens when one dies."""

import time
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from thread_ranks import ThreadRanks, on_ranks
from tiny_config import CONFIG
from transformers import AutoModelForCausalLM

pytest.importorskip("vllm.entrypoints", reason="make test-gpu-contracts runs these")

from fake_vllm_server import FakeGroups, FakeServer
from vllm.distributed.weight_transfer import nccl_engine

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import EngineError, Sample, SampleKey, SampleRequest, Sampling, run_to_end, token_ids
from dapo_lit.engines.vllm_engine.tensors import ServedModel
from dapo_lit.engines.vllm_server import client, transfer
from dapo_lit.engines.vllm_server.client import ServerError
from dapo_lit.engines.vllm_server.command import ServerSettings, write_config
from dapo_lit.engines.vllm_server.engine import VllmServerEngine
from dapo_lit.engines.vllm_server.stream import VllmServerStream
from dapo_lit.environments.running import Tool
from dapo_lit.ranks import Ranks
from dapo_lit.rollout.episodes import EpisodeEngine, EpisodeStream, TurnLimits

SYNC = ["pause abort", "update_config", "reload_weights", "version", "resume_generation", "reset_prefix_cache"]


def engine(servers: list[FakeServer], folder, ranks: Ranks, **changes: Any) -> VllmServerEngine:
    settings = ServerSettings(tuple(s.url for s in servers), folder, max_model_tokens=64, max_batch_size=8, **changes)
    for server in servers:
        server.model = server.model or str(write_config(ServedModel(CONFIG).config, torch.bfloat16, folder))
    return VllmServerEngine(CONFIG, eos_ids=[1], dtype=torch.bfloat16, settings=settings, ranks=ranks)


def tensors() -> list[tuple[str, torch.Tensor]]:
    torch.manual_seed(0)
    return list(AutoModelForCausalLM.from_config(CONFIG).state_dict().items())


def asked(made: VllmServerEngine, max_tokens: int, rank: int = 0) -> VllmServerStream:
    """A stream with two groups of two samples."""
    stream = made.open(Sampling(max_response_tokens=max_tokens))
    stream.submit([SampleRequest(SampleKey(1, f"p{rank}-{g}", 0, j), (5, 6, 7)) for g in range(2) for j in range(2)])
    return stream


def sampled(made: VllmServerEngine, max_tokens: int, rank: int = 0) -> list[Sample]:
    return list(run_to_end(asked(made, max_tokens, rank)))


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

    def work(ranks: ThreadRanks) -> list[int]:
        with closing(engine(servers, tmp_path, ranks)) as made:
            assert made.concurrency == 2 * 8 // size  # what the two servers decode at once is divided, too
            assert {"vllm": "0.32.0", "runner": "V1", "async_scheduling": False} in made.facts.values()
            counts = []
            for version in range(2):
                made.sync_weights(tensors(), version)
                counts.append(len({sample.key for sample in sampled(made, 3, ranks.rank)}))
            ranks.gather(None)
            return counts

    assert on_ranks(size, work) == [[4, 4]] * size
    for server in servers:
        assert server.engine.events == SYNC * 2
        assert len(server.engine.sampled) == 4 * size  # two steps of four samples a rank, halved


def test_a_step_completes_on_the_other_server_when_one_is_killed_and_the_killed_one_returns(servers, tmp_path, capsys):
    with closing(engine(servers, tmp_path, Ranks())) as made:
        made.sync_weights(tensors(), 0)
        for server in servers:
            server.engine.token_s = 0.02
        stream = asked(made, 20)
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
        made.sync_weights(tensors(), 1)
        assert len(sampled(made, 2, rank=1)) == 4
        assert len(servers[0].engine.sampled) == 4  # two before, two again


def test_the_requests_of_a_server_that_falls_silent_start_anew_at_the_other(servers, tmp_path, monkeypatch):
    with closing(engine(servers, tmp_path, Ranks())) as made:
        made.sync_weights(tensors(), 0)
        monkeypatch.setattr(client, "ANSWER_S", 0.3)
        servers[0].engine.token_s = 60.0  # its process is stopped, or its engine hangs
        assert len(sampled(made, 3)) == 4
        assert [len(server.engine.sampled) for server in servers] == [2, 4]


def test_a_server_that_stays_away_is_left_out_by_every_rank_and_none_left_is_an_error(servers, tmp_path):
    def work(ranks: ThreadRanks) -> list[int]:
        with closing(engine(servers, tmp_path, ranks)) as made:
            made.sync_weights(tensors(), 0)
            ranks.first(servers[0].kill)
            counts = []
            for version in (1, 2):
                counts.append(len(sampled(made, 2, ranks.rank)))
                made.sync_weights(tensors(), version)
            ranks.first(servers[1].kill)
            with pytest.raises(ServerError):
                sampled(made, 2, ranks.rank)
            with pytest.raises(ServerError):
                made.sync_weights(tensors(), 3)
            return counts

    assert on_ranks(4, work) == [[4, 4]] * 4


def episodes(made: VllmServerEngine) -> EpisodeStream:
    """A stream with four groups of two episodes, whose turns are answered three times at most."""
    problems = {f"p{g}": Problem(f"p{g}", "", "") for g in range(4)}
    tool = Tool(lambda problem, responses: None if len(responses) > 3 else f"{len(responses)}{len(responses[-1]) % 10}")
    encode, decode = (lambda said: token_ids(map(int, said))), (lambda ids: "".join(map(str, ids)))
    around = EpisodeEngine(made, tool, TurnLimits(9, None, 20), lambda key: problems[key.problem_id], encode, decode)
    stream = around.open(Sampling(max_response_tokens=30))
    stream.submit([SampleRequest(SampleKey(1, f"p{g}", 0, j), (5, 6, g)) for g in range(4) for j in range(2)])
    return stream


def test_an_episode_goes_on_at_its_server_and_at_the_other_when_that_is_killed_between_its_turns(servers, tmp_path):
    with closing(engine(servers, tmp_path, Ranks())) as made:
        made.sync_weights(tensors(), 0)
        for server in servers:
            server.ends = True
        whole = {sample.key: sample for sample in run_to_end(episodes(made))}
        assert any(len(sample.observations) > 2 for sample in whole.values())
        # All turns of an episode are asked for at one server, which has those before in its prefix cache.
        one, other = ({tuple(body["token_ids"][:3]) for body in server.engine.sampled} for server in servers)
        assert (len(one), len(other), one & other) == (2, 2, set())
        assert sum(len(server.engine.sampled) for server in servers) > 16
        for server in servers:
            server.engine.token_s = 0.01
        stream, ended = episodes(made), list[Sample]()
        while not any(u.server == 0 and len(u.request.partial.observations) for u in stream._stream._pending.values()):
            ended += stream.step()
        servers[0].kill()
        assert {sample.key: sample for sample in [*ended, *run_to_end(stream)]} == whole


@pytest.fixture
def nccl(monkeypatch):
    """Two servers of 2 and 4 GPUs, in vLLM's own messages: only the communicator is replaced."""
    groups = FakeGroups()
    servers = [FakeServer(gpus, groups=groups) for gpus in (2, 4)]
    monkeypatch.setattr(transfer, "DEVICE", "cpu")
    monkeypatch.setattr(transfer, "PACKED", False)  # packing needs streams of a GPU
    monkeypatch.setattr(transfer, "GRACE_S", 0.2)
    monkeypatch.setattr(transfer.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(transfer.torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    alive = lambda: sum(server.thread.is_alive() for server in servers)  # noqa: E731
    monkeypatch.setattr(
        "vllm.distributed.weight_transfer.nccl_engine.open_trainer_endpoint",
        lambda place: groups.open_trainer_endpoint(place, alive()),
    )
    yield groups, servers
    groups.hangs = False
    for server in servers:
        if server.thread.is_alive():
            server.kill()


def check_loaded(server: FakeServer, given: dict[str, torch.Tensor]) -> None:
    assert set(server.engine.loaded) == set(given)
    for name, tensor in server.engine.loaded.items():
        assert torch.equal(tensor, given[name].to(torch.bfloat16)), name


@pytest.mark.parametrize("size", [1, 2])
def test_weights_over_nccl_reach_every_worker_in_the_trainers_order(size, nccl, tmp_path):
    groups, servers = nccl
    given = dict(tensors())

    def work(ranks: ThreadRanks) -> None:
        with closing(engine(servers, tmp_path, ranks, transfer="nccl")) as made:
            for version in range(2):
                made.sync_weights(given.items(), version)
                assert len(sampled(made, 3, ranks.rank)) == 4  # by the label of these weights
            ranks.gather(None)

    on_ranks(size, work)
    assert groups.made == [(7, [1, 3])]  # one group: rank 0 is the trainer, then the workers of each server
    for server in servers:
        check_loaded(server, given)
        done = ["start_weight_update", "update", "finish_weight_update", "version"]
        assert [event for event in server.engine.events if event in ("init", *done)] == ["init", *done, *done]
        assert server.engine.events.index("pause abort") < server.engine.events.index("init")
    assert not [*tmp_path.rglob("*.safetensors")]


def test_a_group_over_nccl_is_made_again_without_a_lost_server_and_with_one_that_was_started_again(nccl, tmp_path):
    groups, servers = nccl
    given = dict(tensors())
    with closing(engine(servers, tmp_path, Ranks(), transfer="nccl")) as made:
        made.sync_weights(given.items(), 0)
        servers[0].kill()
        made.sync_weights(given.items(), 1)
        servers[0].start()
        made.sync_weights(given.items(), 2)
        servers[1].engine.label = "default"  # it was started again between two steps, unnoticed
        servers[1].engine.loaded.clear()
        made.sync_weights(given.items(), 3)
        assert groups.made == [(7, [1, 3]), (5, [1]), (7, [1, 3]), (7, [1, 3])]
        check_loaded(servers[1], given)


def before_its_first_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: object) -> None:
        raise RuntimeError("no transfer begins")

    monkeypatch.setattr(nccl_engine.NCCLTrainerWeightTransferEngine, "send_weights", refused)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_a_server_that_fails_while_weights_are_sent_over_nccl_ends_every_rank_instead_of_a_wait(
    size, early, nccl, tmp_path, monkeypatch
):
    groups, servers = nccl
    servers[1].engine.refuses, groups.hangs = "update", True
    said = rf"{servers[1].url}/update_weights answers 500"
    if early:
        before_its_first_tensor(monkeypatch)
        said = "no transfer begins"

    def work(ranks: ThreadRanks) -> list[int]:
        taken = []

        class Given:
            def __iter__(self):
                taken.append(0)
                for pair in tensors():
                    taken[-1] += 1
                    yield pair

        with closing(engine(servers, tmp_path, ranks, transfer="nccl")) as made:
            with pytest.raises(EngineError, match=f"{said}.*start the servers"):
                made.sync_weights(Given(), 0)
            ranks.gather(None)
        return taken

    taken_by_rank = on_ranks(size, work)
    # One that waits in NCCL would not answer it, and the end of the run would wait for hours.
    assert "shutdown_weight_transfer_engine" not in servers[0].engine.events
    whole = len(tensors())
    # Each rank gathers all tensors twice, once for their shapes: a rank that stops would leave the others waiting.
    assert taken_by_rank == [[whole, whole]] * size


def test_weights_go_through_the_folder_where_no_group_can_be_made(nccl, tmp_path, capsys):
    groups, servers = nccl
    servers[0].engine.refuses = "init"
    with closing(engine(servers, tmp_path, Ranks(), transfer="nccl")) as made:
        groups.open_trainer_endpoint = lambda place, servers: time.sleep(20)  # NCCL waits for all
        for version in range(2):
            made.sync_weights(dict(tensors()).items(), version)
        assert len(sampled(made, 3)) == 4
    said = capsys.readouterr().out
    assert said.count("weights go through rollout.vllm.server.folder, about 0.0 GB") == 1
    assert f"{servers[0].url}/init_weight_transfer_engine answers 500" in said
