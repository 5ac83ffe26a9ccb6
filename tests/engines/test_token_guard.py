"""The guard of a vLLM server, by the kinds of connection that ASGI has."""

import asyncio

import pytest

from dapo_lit.engines.vllm_server.guard import TokenGuard

TOKEN = [(b"authorization", b"Bearer secret")]


def answers(scope: dict, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of message that a client gets; `app` if the server's own application was reached."""
    sent: list[str] = []

    async def app(scope, receive, send):
        sent.append("app")

    async def send(message):
        sent.append(str(message["type"]))

    async def receive():
        raise AssertionError("a refusal reads nothing")

    monkeypatch.setenv("VLLM_API_KEY", "secret")
    asyncio.run(TokenGuard(app)(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ({"type": "lifespan"}, ["app"]),
        ({"type": "http", "path": "/health", "headers": []}, ["app"]),
        ({"type": "http", "path": "/v1/completions", "headers": TOKEN}, ["app"]),
        ({"type": "websocket", "path": "/v1/realtime", "headers": TOKEN}, ["app"]),
        ({"type": "http", "path": "/health/", "headers": []}, ["http.response.start", "http.response.body"]),
        ({"type": "websocket", "path": "/v1/realtime", "headers": []}, ["websocket.close"]),
        ({"type": "websocket", "path": "/v1", "headers": [(b"authorization", b"Bearer")]}, ["websocket.close"]),
    ],
)  # fmt: skip
def test_only_a_client_with_the_token_reaches_the_server(scope, expected, monkeypatch):
    assert answers(scope, monkeypatch) == expected


@pytest.mark.parametrize("key", [None, ""])
def test_a_guard_without_a_key_does_not_start(monkeypatch, key):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("VLLM_API_KEY", key)
    with pytest.raises(ValueError, match="VLLM_API_KEY is not set"):
        TokenGuard(None)
