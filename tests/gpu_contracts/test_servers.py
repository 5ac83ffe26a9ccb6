"""Several ranks on several servers: who gives orders, who samples where, and what happens when one dies."""

from contextlib import ExitStack, closing
from typing import Any

import pytest
import torch
from thread_ranks import ThreadRanks, on_ranks
from tiny_config import CONFIG
from transformers import AutoModelForCausalLM

pytest.importorskip("vllm.entrypoints", reason="make test-gpu-contracts runs these")

from fake_vllm_server import FakeServer

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import Sample, SampleKey, SampleRequest, Sampling, run_to_end, token_ids
from dapo_lit.engines.vllm_engine.tensors import ServedModel
from dapo_lit.engines.vllm_server import client
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
