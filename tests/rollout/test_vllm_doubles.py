"""What the engines make of vLLM's answers, with a double in its place; tests/vllm has the real one."""

from types import SimpleNamespace

import pytest

from dapo_lit.rollout.engine import SampleRequest, Sampling
from dapo_lit.rollout.records import SampleKey
from dapo_lit.rollout.vllm_engine import VllmEngine
from dapo_lit.rollout.vllm_server_client import ServerError
from dapo_lit.rollout.vllm_server_engine import VllmServerEngine
from dapo_lit.rollout.vllm_server_stream import VllmServerStream


def test_samples_that_ended_before_a_server_failed_are_handed_out_before_the_failure_is_told():
    client = SimpleNamespace(urls=["http://a"], start=lambda work: work.close())
    stream = VllmServerStream(client, [1], 100, Sampling(max_response_tokens=4), version=3, label="l")
    stream.submit([SampleRequest(SampleKey(1, "p", 0, i), (5,)) for i in range(2)])
    ended = stream._pending[SampleKey(1, "p", 0, 0)]
    ended.ids, ended.logprobs, ended.finish_reason = [7], [-0.5], "stop"
    stream._ended.put(ended)
    stream._ended.put(ServerError("http://a is gone"))
    assert [sample.response_ids for sample in stream.step()] == [(7,)]
    with pytest.raises(ServerError, match="is gone"):
        stream.step()


def test_a_prefix_cache_that_is_not_emptied_is_told():
    engine = VllmEngine.__new__(VllmEngine)
    engine._asleep, engine._wide, engine._names = False, None, set()
    engine._llm = SimpleNamespace(collective_rpc=lambda *_, **__: None, reset_prefix_cache=lambda: False)
    with pytest.raises(RuntimeError, match="prefix cache is not reset"):
        engine.sync_weights([], 1)
    assert engine.version is None


def test_an_engine_of_servers_may_be_closed_twice(tmp_path):
    engine = VllmServerEngine.__new__(VllmServerEngine)
    calls: list[str] = []
    engine._nccl, engine._closed, engine._weights = None, False, tmp_path / "weights_x"
    engine._weights.mkdir()
    engine.ranks = SimpleNamespace(rank=0)
    engine._client = SimpleNamespace(close=lambda: calls.append("client"))
    engine.close()
    engine.close()
    assert calls == ["client"]
    assert not engine._weights.exists()
