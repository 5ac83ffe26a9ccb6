"""The order in which the stream of a server hands out what ended; tests/vllm_runs has real servers."""

from types import SimpleNamespace

import pytest

from dapo_lit.engines.protocol import SampleKey, SampleRequest, Sampling
from dapo_lit.engines.vllm_server.client import ServerError
from dapo_lit.engines.vllm_server.servers import Servers
from dapo_lit.engines.vllm_server.stream import VllmServerStream
from dapo_lit.ranks import Ranks


def test_samples_that_ended_before_a_server_failed_are_handed_out_before_the_failure_is_told():
    client = SimpleNamespace(urls=["http://a"], start=lambda work: work.close())
    stream = VllmServerStream(Servers(client, Ranks()), [1], 100, Sampling(max_response_tokens=4), version=3, label="l")
    stream.submit([SampleRequest(SampleKey(1, "p", 0, i), (5,)) for i in range(2)])
    ended = stream._pending[SampleKey(1, "p", 0, 0)]
    ended.ids, ended.logprobs, ended.finish_reason = [7], [-0.5], "stop"
    stream._ended.put((ended, None))
    stream._ended.put((stream._pending[SampleKey(1, "p", 0, 1)], ServerError("http://a is gone")))
    assert [sample.response_ids.tolist() for sample in stream.step()] == [[7]]
    with pytest.raises(ServerError, match="is gone"):
        stream.step()
