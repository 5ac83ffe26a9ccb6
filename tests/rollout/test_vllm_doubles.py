"""What the engines make of vLLM's answers, with a double in its place; tests/vllm has the real one."""

from types import SimpleNamespace

from dapo_lit.rollout.vllm_server_engine import VllmServerEngine


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
