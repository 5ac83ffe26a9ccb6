"""HTTP to the servers of vLLM, from one thread of its own.

Thousands of responses stream at once while the trainer's thread verifies them, so everything that waits for a socket
waits here.
"""

import asyncio
import errno
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from dapo_lit.engines.protocol import EngineError

T = TypeVar("T")
REFUSED = (400, 404, 413, 422)
"""Status codes with which a healthy server refuses a request for good."""
TOKEN = "VLLM_API_KEY"
"""The variable of the environment, of vLLM's own, that holds the servers' token."""
IDLE_S = 1.0
"""Seconds after which an idle connection is not used again. vLLM closes one after 5, and a request that meets the
closing would count as a lost server."""
CONNECT_S = 20.0
"""Seconds for a server to accept a connection, and to answer a question; an absent machine would be waited for long."""
ANSWER_S = 600.0
"""Seconds without a token of any response: then a server is lost. One that is stopped stays silent."""
ORDER_S = 7200.0
"""Seconds for a server that is alive to carry out an order, where the run has no such time."""
HEALTH = "/health"


class ServerError(EngineError):
    """A server does not answer, or answers with an error; the message begins with its address."""


class NoSuchRouteError(ServerError):
    """A server has no such route (404)."""


@contextmanager
def failures_named(address: str) -> Iterator[None]:
    """Turns what goes wrong with a server into a ServerError, and what goes wrong here into an EngineError."""
    try:
        yield
    except (json.JSONDecodeError, HttpProcessingError) as error:
        raise ServerError(f"{address} sends what vLLM does not ({type(error).__name__}: {error})") from error
    except (aiohttp.ClientError, OSError) as error:
        # The servers are well, and others would be asked in vain.
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise EngineError(f"{error.strerror} in this process, for a connection to {address} (ulimit -n)") from error
        raise ServerError(f"{address} does not answer ({type(error).__name__}: {error})") from error


class ServerClient:
    """Requests to `urls`, with or without waiting for the answer.

    order_s: seconds for an order, as long as the server is alive.
    """

    def __init__(self, urls: Sequence[str], order_s: float = ORDER_S) -> None:
        self.urls = [url.rstrip("/") for url in urls]
        self._order_s = order_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-servers", daemon=True)
        self._thread.start()
        self._session = self.run(self._open())

    async def _open(self) -> aiohttp.ClientSession:
        # No proxy of the environment: the servers are neighbours. No limit: the servers queue by themselves.
        token = os.environ.get(TOKEN)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S), headers=headers)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done in the client's thread."""
        return self.start(work).result()

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Starts `work` in the client's thread; cancelling the future cancels it."""
        # asyncio's objects are not thread-safe: this is the one way in from another thread.
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def at_once(self, work: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        """The result or the error of each."""

        async def all_of_them() -> list[T | BaseException]:
            return await asyncio.gather(*work, return_exceptions=True)

        return self.run(all_of_them())

    def get(self, url: str, path: str) -> Any:
        """The JSON (None for an empty body) of one server. Raises ServerError."""
        return self.run(self.ask("GET", url, path))

    def post(self, path: str, bodies: Mapping[str, dict[str, Any] | None]) -> list[Any]:
        """An order to servers at once, by address; the answer or the ServerError of each."""
        return self.at_once(self.order(url, path, body) for url, body in bodies.items())

    async def order(self, url: str, path: str, body: dict[str, Any] | None) -> Any:
        """POSTs, and waits as long as the server says that it is alive: loading weights takes what the disk takes."""
        answer = asyncio.ensure_future(self.ask("POST", url, path, body, self._order_s))
        try:
            while not (await asyncio.wait([answer], timeout=CONNECT_S))[0]:
                await self.text("GET", url, HEALTH)
            return answer.result()
        finally:
            answer.cancel()

    async def ask(
        self, method: str, url: str, path: str, body: dict[str, Any] | None = None, answer_s: float | None = None
    ) -> Any:
        """In the client's thread: the JSON of one server. Raises ServerError."""
        text = await self.text(method, url, path, body, answer_s)
        with failures_named(url + path):
            return json.loads(text) if text.strip() else None

    async def text(
        self, method: str, url: str, path: str, body: dict[str, Any] | None = None, answer_s: float | None = None
    ) -> str:
        """In the client's thread: what one server answers. Raises ServerError."""
        timeout = aiohttp.ClientTimeout(total=answer_s or CONNECT_S, sock_connect=CONNECT_S)
        with failures_named(url + path):
            async with self._session.request(method, url + path, json=body, timeout=timeout) as answer:
                text = await answer.text(errors="replace")
                if answer.status != 200:
                    kind = NoSuchRouteError if answer.status == 404 else ServerError
                    raise kind(f"{url}{path} answers {answer.status}: {text[:500]}")
                return text

    async def events(self, url: str, path: str, body: dict[str, Any], take: Callable[[Any], None]) -> None:
        """POSTs and calls `take` with the JSON of each server-sent event, until the stream ends."""
        # A response may wait, and take hours; stream.py watches the server.
        forever = aiohttp.ClientTimeout(total=None)
        with failures_named(url + path):
            async with self._session.post(url + path, json=body, timeout=forever) as answer:
                if answer.status != 200:
                    message = f"{url}{path} answers {answer.status}: {(await answer.text(errors='replace'))[:500]}"
                    raise ValueError(message) if answer.status in REFUSED else ServerError(message)
                async for line in answer.content:
                    if not line.startswith(b"data: "):
                        continue
                    if line.strip() == b"data: [DONE]":
                        return
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise ServerError(f"{url}{path}: {str(event['error'])[:500]}")
                    take(event)
            raise ServerError(f"{url}{path}: the stream ended early")

    def close(self) -> None:
        """Drops every connection, and with it the requests on the servers."""

        async def end() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._session.close()

        self.run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
