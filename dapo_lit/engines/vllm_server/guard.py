"""Lets only those who know the token reach a server of vLLM: `vllm serve ... --middleware` takes this class.

vLLM's own `--api-key` guards the routes that sample, but not those that set weights. Both read VLLM_API_KEY. Imports
nothing of the trainer, because a server loads it.
"""

import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]
OPEN = ("/health",)
"""A scheduler asks for it without the token."""

HOW = "set one key for trainer and servers: export VLLM_API_KEY=$(openssl rand -hex 16)"


class TokenGuard:
    """Answers 401 to a request without `Authorization: Bearer <VLLM_API_KEY>`, and closes such a WebSocket."""

    def __init__(self, app: App) -> None:
        self._app = app
        # At the start of the server: one that guards nothing would let anybody set its weights.
        if not (key := os.environ.get("VLLM_API_KEY")):
            raise ValueError(f"VLLM_API_KEY is not set; {HOW}")
        self._wanted = f"Bearer {key}".encode()

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        given = dict(scope.get("headers") or ()).get(b"authorization", b"")
        # Lifespan events are the server's own start and stop, not a request.
        is_open = scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in OPEN)
        if is_open or secrets.compare_digest(given, self._wanted):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            # Before it is accepted: the client gets a 403.
            await send({"type": "websocket.close", "code": 1008})
            return
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b'{"error": "wrong or missing token"}'})
