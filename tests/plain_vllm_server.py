"""A server with the routes of vLLM 0.32 that an engine uses: a queue, tokens at random, and faults to set.

In a thread, or as a process that takes what `vllm` takes: `python plain_vllm_server.py serve MODEL ...`.
gpu_contracts/fake_vllm_server.py has vLLM's own routes where vLLM is installed.
"""

import argparse
import asyncio
import json
import os
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

SETTINGS = {"dtype": "torch.bfloat16", "logprobs_mode": "processed_logprobs"}


class PlainServer:
    """Serves from `start` to `stop`. Every attribute may be changed meanwhile."""

    def __init__(self, model: str, places: int = 64, host: str = "127.0.0.1", port: int = 0) -> None:
        self.model, self.host, self.port = model, host, port
        self.vocabulary = 64
        self.ends = False
        """One token in five is the first that ends a response."""
        self.key = ""
        """The token that every request but those for /health must have."""
        self.label = "default"
        self.settings: dict[str, Any] = dict(SETTINGS)
        self.environment: dict[str, Any] = {}
        self.token_s = 0.0
        self.takes_s: dict[str, float] = {}  # by route
        self.fails: dict[str, int] = {}  # by route: the status with which it answers
        self.asked: list[str] = []
        self.generated = self.under_way = self.most_under_way = 0
        self._places = places

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        self.url = f"http://{self.host}:{self.port}"

    async def _serve(self) -> int:
        self._free = asyncio.Semaphore(self._places)
        app = web.Application(middlewares=[self._faults])
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/update_weight_version", self._update_label)
        for path in ("/pause", "/resume", "/reset_prefix_cache", "/collective_rpc"):
            app.router.add_post(path, lambda _: _json({"success": True}))
        for path, answer in {
            "/version": lambda: {"version": "0.32.0"},
            "/v1/models": lambda: {"data": [{"root": self.model, "max_model_len": 10**6}]},
            "/server_info": lambda: {
                "vllm_config": {
                    "model_config": self.settings,
                    "device_config": {"device": "cuda"},
                    "scheduler_config": {"async_scheduling": False},
                },
                "vllm_env": self.environment,
            },
            "/weight_info": lambda: {"weight_version": self.label},
            "/health": lambda: None,
        }.items():
            app.router.add_get(path, lambda _, answer=answer: _json(answer()))
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, backlog=4096, reuse_address=True)
        await site.start()
        return int(self._runner.addresses[0][1])

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @web.middleware
    async def _faults(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self.key and request.path != "/health" and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "no token"}, status=401)
        body = await request.json() if request.can_read_body else {}
        path = request.path.removeprefix("/collective_rpc") or "/" + body["method"]
        self.asked.append(path)
        await asyncio.sleep(self.takes_s.get(path, 0.0))
        if path in self.fails:
            return web.json_response({"error": "as told"}, status=self.fails[path])
        return await handler(request)

    async def _update_label(self, request: web.Request) -> web.Response:
        self.label = (await request.json())["new_version"]
        return await _json({"success": True})

    async def _metrics(self, _: web.Request) -> web.Response:
        lines = (
            "# TYPE vllm:generation_tokens_total counter",
            f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {float(self.generated)}',
            'vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09',
        )
        return web.Response(text="\n".join(lines) + "\n")

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        """As vLLM: the label of the weights is in the last event only."""
        given = (await request.json())["sampling_params"]
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            async with self._free:
                draw, ending = random.Random(given["seed"]), given["stop_token_ids"]
                for left in reversed(range(given["max_tokens"])):
                    await asyncio.sleep(self.token_s)
                    self.generated += 1
                    ends = self.ends and draw.random() < 0.2
                    choice = {
                        "token_ids": [ending[0] if ends else draw.randrange(max(ending) + 1, self.vocabulary)],
                        "logprobs": {"content": [{"logprob": -0.5}]},
                        "finish_reason": "stop" if ends else None if left else "length",
                        "weight_versions": [{"version": self.label}] if ends or not left else None,
                    }
                    await answer.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
                    if ends:
                        break
        finally:
            self.under_way -= 1
        await answer.write(b"data: [DONE]\n\n")
        return answer


async def _json(content: Any) -> web.Response:
    return web.json_response(content)


@contextmanager
def plain_servers(number: int, model: str, places: int = 64) -> Iterator[list[PlainServer]]:
    made = [PlainServer(model, places) for _ in range(number)]
    for server in made:
        server.start()
    try:
        yield made
    finally:
        for server in made:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("serve")
    parser.add_argument("model", type=Path)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--dtype")
    given, _ = parser.parse_known_args()
    server = PlainServer(str(given.model), host=given.host, port=given.port)
    server.key, server.ends = os.environ["VLLM_API_KEY"], True
    server.vocabulary = json.loads((given.model / "config.json").read_text())["vocab_size"]
    server.settings["dtype"] = f"torch.{given.dtype}"
    server.token_s = 0.05  # sampling takes most of a step, as it does of a real one, and no processor time
    server.start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
