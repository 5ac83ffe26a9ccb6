"""What an engine does with servers that are full, busy with others, slow, wrong or restarted; no vLLM is needed."""

import errno
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import run_cli
from local_server import Handler, serving
from plain_vllm_server import PlainServer, plain_servers
from safetensors import SafetensorError
from thread_ranks import ThreadRanks, on_ranks
from tiny_config import CONFIG
from transformers import AutoModelForCausalLM

from ablations.errors import UserError
from dapo_lit.engines.protocol import EngineError, SampleKey, SampleRequest, Sampling, run_to_end
from dapo_lit.engines.vllm_engine.tensors import ServedModel
from dapo_lit.engines.vllm_server import client
from dapo_lit.engines.vllm_server import engine as server_engine
from dapo_lit.engines.vllm_server.client import ServerClient, ServerError
from dapo_lit.engines.vllm_server.command import ServerSettings, write_config
from dapo_lit.engines.vllm_server.engine import VllmServerEngine
from dapo_lit.ranks import Ranks


@contextmanager
def servers_in(folder: Path, number: int = 1, places: int = 64) -> Iterator[list[PlainServer]]:
    with plain_servers(number, str(write_config(ServedModel(CONFIG).config, torch.bfloat16, folder)), places) as made:
        yield made


def at_urls(urls: list[str], folder: Path, ranks: Ranks | None = None, **changes: Any) -> VllmServerEngine:
    settings = ServerSettings(tuple(urls), folder, **{"max_model_tokens": 4096, "max_batch_size": 8} | changes)
    return VllmServerEngine(CONFIG, eos_ids=[1], dtype=torch.bfloat16, settings=settings, ranks=ranks or Ranks())


def engine(servers: list[PlainServer], folder: Path, ranks: Ranks | None = None, **changes: Any) -> VllmServerEngine:
    return at_urls([server.url for server in servers], folder, ranks, **changes)


def tensors() -> list[tuple[str, torch.Tensor]]:
    return list(AutoModelForCausalLM.from_config(CONFIG).state_dict().items())


def requests(number: int, name: str = "p") -> list[SampleRequest]:
    return [SampleRequest(SampleKey(1, f"{name}{i // 4}", 0, i % 4), (5, 6, 7)) for i in range(number)]


def sampled(made: VllmServerEngine, number: int, max_tokens: int, name: str = "p") -> int:
    return len(list(made.generate(requests(number, name), Sampling(max_response_tokens=max_tokens))))


@pytest.fixture
def files_limit():
    """Sets the limit on this process's open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda soft, hard=before[1]: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_rank_has_as_many_connections_as_the_servers_have_places(tmp_path):
    with servers_in(tmp_path) as servers, closing(engine(servers, tmp_path, max_batch_size=40)) as made:
        made.sync_weights(tensors(), 0)
        assert sampled(made, 240, 2) == 240
        assert 20 < servers[0].most_under_way <= 40


def test_the_limit_on_open_files_is_raised_for_the_connections(tmp_path, files_limit):
    with servers_in(tmp_path) as servers:
        files_limit(64 + len(os.listdir("/proc/self/fd")))
        engine(servers, tmp_path, max_batch_size=600).close()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 600


def test_too_few_open_files_are_an_error_of_this_process_and_of_no_server(tmp_path, monkeypatch, capsys):
    with servers_in(tmp_path) as servers, closing(engine(servers, tmp_path)) as made:
        made.sync_weights(tensors(), 0)

        async def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr("aiohttp.connector.aiohappyeyeballs.start_connection", full)
        with pytest.raises(EngineError, match="open files in this process") as told:
            sampled(made, 4, 2)
        assert not isinstance(told.value, ServerError)
        assert "lost" not in capsys.readouterr().out


def test_what_waits_for_a_place_is_withdrawn_with_the_tokens_it_brought(tmp_path):
    with servers_in(tmp_path) as servers, closing(engine(servers, tmp_path, max_batch_size=2)) as made:
        servers[0].token_s = 0.02
        made.sync_weights(tensors(), 0)
        stream, wanted = made.open(Sampling(max_response_tokens=6)), requests(8)
        stream.submit(wanted)
        assert stream.pending == 8
        got = stream.withdraw([request.key for request in wanted[1:7]])
        assert set(got) == {request.key for request in wanted[1:7]}
        assert {sample.key for sample in run_to_end(stream)} == {wanted[0].key, wanted[7].key}


def test_a_server_that_is_busy_with_another_ranks_requests_is_not_lost(tmp_path, monkeypatch):
    """Rank 1 stands behind rank 0 for longer than a server may be silent. A place of vLLM may hold no cache."""
    monkeypatch.setattr(client, "ANSWER_S", 0.4)
    with servers_in(tmp_path, places=2) as servers:
        servers[0].token_s = 0.02

        def work(ranks: ThreadRanks) -> int:
            with closing(engine(servers, tmp_path, ranks, max_batch_size=60)) as made:
                made.sync_weights(tensors(), 0)
                time.sleep(0.2 * ranks.rank)
                return sampled(made, 12, 16, f"r{ranks.rank}-")

        assert on_ranks(2, work) == [12, 12]


def test_a_server_that_generates_nothing_for_anybody_is_lost_though_it_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "ANSWER_S", 0.3)
    with servers_in(tmp_path, 2) as servers, closing(engine(servers, tmp_path)) as made:
        made.sync_weights(tensors(), 0)
        servers[0].token_s = 60.0
        assert sampled(made, 8, 3) == 8
        assert servers[0].asked.count("/metrics") == 2


def test_a_server_that_falls_silent_within_a_response_is_lost_whatever_it_does_for_others(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "ANSWER_S", 0.3)
    with servers_in(tmp_path, 2) as servers, closing(engine(servers, tmp_path)) as made:
        made.sync_weights(tensors(), 0)
        for server in servers:
            server.token_s = 0.01
        stream = made.open(Sampling(max_response_tokens=20))
        stream.submit(requests(8))
        while not any(under_way.ids and under_way.server == 0 for under_way in stream._pending.values()):
            stream.step()
        servers[0].token_s = 60.0
        assert len(list(run_to_end(stream))) == 8
        assert "/metrics" not in servers[0].asked


@pytest.mark.parametrize("route", ["/pause", "/update_config", "/reload_weights", "/update_weight_version", "/resume"])
def test_a_server_that_fails_at_a_sync_is_left_out_by_all_ranks_and_comes_back_at_the_next(route, tmp_path):
    with servers_in(tmp_path, 2) as servers:

        def work(ranks: ThreadRanks) -> list[int]:
            with closing(engine(servers, tmp_path, ranks)) as made:
                ranks.first(lambda: servers[1].fails.update({route: 500}))
                made.sync_weights(tensors(), 0)
                counts = [sampled(made, 4, 2, f"r{ranks.rank}-")]
                ranks.gather(None)
                ranks.first(servers[1].fails.clear)
                assert servers[1].generated == 0
                made.sync_weights(tensors(), 1)
                counts.append(sampled(made, 4, 2, f"r{ranks.rank}-"))
                return counts

        assert on_ranks(2, work) == [[4, 4]] * 2
        assert servers[1].generated == 8


def test_if_the_only_server_fails_at_a_sync_the_error_of_every_rank_says_why(tmp_path):
    with servers_in(tmp_path) as servers:
        servers[0].fails["/reload_weights"] = 500

        def work(ranks: ThreadRanks) -> None:
            with closing(engine(servers, tmp_path, ranks)) as made, pytest.raises(ServerError, match=r"500: .*as told"):
                made.sync_weights(tensors(), 0)

        on_ranks(2, work)


def test_a_prefix_cache_that_is_not_reset_loses_its_server_only(tmp_path, monkeypatch):
    monkeypatch.setattr(server_engine, "RESET_S", 0.2)
    with servers_in(tmp_path, 2) as servers, closing(engine(servers, tmp_path)) as made:
        made.sync_weights(tensors(), 0)
        orders = made._servers.order
        held = {0: {"success": True}, 1: {"success": False}}
        monkeypatch.setattr(made._servers, "order", lambda path, *a: held if "reset" in path else orders(path, *a))
        made.sync_weights(tensors(), 1)
        assert [*made._servers.lost] == [1]


def test_a_load_may_take_long_while_the_server_is_alive_and_no_longer(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "CONNECT_S", 0.2)
    monkeypatch.setattr(client, "ANSWER_S", 0.3)
    with servers_in(tmp_path) as servers:
        servers[0].takes_s["/reload_weights"] = 1.0
        with closing(engine(servers, tmp_path, order_s=5.0)) as made:
            made.sync_weights(tensors(), 0)
            assert servers[0].asked.count("/health") >= 3
            servers[0].takes_s["/health"] = 60.0  # its process is stopped
            with pytest.raises(ServerError, match="/health does not answer"):
                made.sync_weights(tensors(), 1)
        del servers[0].takes_s["/health"]
        with (
            closing(engine(servers, tmp_path, order_s=0.5)) as made,
            pytest.raises(ServerError, match="collective_rpc"),
        ):
            made.sync_weights(tensors(), 0)


@pytest.mark.parametrize("error", [SafetensorError("I/O error: No space left on device"), OSError(28, "No space left")])
def test_weights_that_cannot_be_written_end_every_rank_with_the_folder_and_no_collective_is_left_open(
    error, tmp_path, monkeypatch
):
    def full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(server_engine, "save_file", full)
    monkeypatch.setattr(server_engine, "SHARD_BYTES", 1)  # the first of several
    with servers_in(tmp_path) as servers:

        def work(ranks: ThreadRanks) -> None:
            def gathered() -> Iterator[tuple[str, torch.Tensor]]:
                for each in tensors():
                    ranks.gather(None)  # shards
                    yield each

            with closing(engine(servers, tmp_path, ranks)) as made:
                with pytest.raises(EngineError, match=f"rollout.vllm.server.folder={tmp_path}: .*No space left"):
                    made.sync_weights(gathered(), 0)
                ranks.gather(None)

        on_ranks(2, work)


def test_tokens_that_a_restarted_server_has_drawn_are_not_kept(tmp_path):
    """It has dummy weights, and this rank has nothing under way there that would break."""
    with servers_in(tmp_path, 2) as servers, closing(engine(servers, tmp_path)) as made:
        made.sync_weights(tensors(), 7)
        for server in servers:
            server.token_s = 0.01
        servers[1].label = "default"
        stream, wanted = made.open(Sampling(max_response_tokens=2000)), requests(8)
        stream.submit(wanted)
        until = time.monotonic() + 10
        while not all(under_way.ids for under_way in stream._pending.values()) and time.monotonic() < until:
            stream.step()
        of_restarted = {key for key, under_way in stream._pending.items() if under_way.server == 1}
        assert len(of_restarted) == 4
        for key, partial in stream.withdraw([request.key for request in wanted]).items():
            assert bool(len(partial.response_ids)) == (key not in of_restarted)


KILLED = """
import os, sys
sys.path[:0] = sys.argv[1].split(os.pathsep)
from test_vllm_servers import Path, at_urls, tensors
made = at_urls([sys.argv[2]], Path(sys.argv[3]))
made.sync_weights(tensors(), 0)
os.kill(os.getpid(), 9)
"""


def test_weights_of_a_killed_process_are_removed_by_the_next_and_those_of_a_live_one_are_not(tmp_path):
    with servers_in(tmp_path) as servers, closing(engine(servers, tmp_path)) as lives:
        lives.sync_weights(tensors(), 0)
        kept = set(tmp_path.rglob("*.safetensors"))
        (tmp_path / "killed.py").write_text(KILLED)
        done = run_cli(os.pathsep.join(sys.path), servers[0].url, str(tmp_path), cwd=tmp_path, module="killed")
        assert done.returncode == -9, done.stderr
        assert len([*tmp_path.glob("weights_*")]) == 2
        with closing(engine(servers, tmp_path)) as made:
            made.sync_weights(tensors(), 0)
            assert kept < set(tmp_path.rglob("*.safetensors"))
            assert len([*tmp_path.glob("weights_*")]) == 2
        assert set(tmp_path.rglob("*.safetensors")) == kept
    assert not [*tmp_path.glob("weights_*")]


def refusal(servers: list[PlainServer], folder: Path, **changes: Any) -> str:
    with pytest.raises(ValueError) as told:
        engine(servers, folder, **changes)
    return str(told.value)


def test_a_server_without_the_float32_head_or_the_invariant_kernels_of_the_run_is_refused(tmp_path):
    with servers_in(tmp_path) as servers:
        [server] = servers
        engine(servers, tmp_path, fp32_head=True, deterministic=True).close()  # it shows neither
        server.settings["hf_overrides"], server.environment = {}, {"VLLM_BATCH_INVARIANT": False}
        engine(servers, tmp_path).close()
        assert "head_dtype=None, not float32" in refusal(servers, tmp_path, fp32_head=True)
        assert "VLLM_BATCH_INVARIANT=False, not True" in refusal(servers, tmp_path, deterministic=True)
        server.settings["hf_overrides"], server.environment = {"head_dtype": "float32"}, {"VLLM_BATCH_INVARIANT": True}
        engine(servers, tmp_path, fp32_head=True, deterministic=True).close()
        assert "head_dtype=float32, not None" in refusal(servers, tmp_path, deterministic=True)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"<html>hello</html>", "/version sends what vLLM does not (JSONDecodeError"),
        (b"\xff\xfe", "/version sends what vLLM does not (JSONDecodeError"),
        (b'{"gitVersion": "v1.33"}', "/version is {'gitVersion': 'v1.33'}"),
        (b"", "/version is None"),
    ],
)
def test_another_service_is_refused_with_its_address(body, named, tmp_path):
    class Other(Handler):
        def get(self, path: str) -> None:
            self.answer(body)

    with serving(Other) as url:
        with pytest.raises(ValueError) as told:
            at_urls([url], tmp_path)
        assert url + named in str(told.value)


def test_a_stream_that_is_not_vllms_is_an_error_of_its_server(tmp_path):
    class Other(Handler):
        def post(self, path: str) -> None:
            self.answer(b"data: " + (b"x" * 2**20 if path == "/long" else b"{") + b"\n\n")

    with serving(Other) as url, closing(ServerClient([url])) as made:
        for path in ("/long", "/broken"):
            with pytest.raises(ServerError, match=url + path):
                made.run(made.events(url, path, {}, lambda event: None))


def test_a_limit_on_open_files_below_what_the_places_need_is_refused_before_anything_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 2048))
    with pytest.raises(UserError, match=r"open files .*allows 2048.*rollout\.max_batch_size"):
        at_urls(["http://127.0.0.1:9"], tmp_path, max_batch_size=4096)
