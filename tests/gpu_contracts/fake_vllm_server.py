"""A server with vLLM's own routes for weights and caches, on a fake engine that samples at random."""

import asyncio
import json
import os
import random
import socket
import threading
import time
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLWeightTransferUpdateInfo
from vllm.entrypoints.rl.online import api_router as weights
from vllm.entrypoints.serve.dev.cache import api_router as cache
from vllm.entrypoints.serve.dev.rpc import api_router as rpc

from dapo_lit.engines.vllm_server.engine import SERVER_VERSION
from dapo_lit.engines.vllm_server.guard import TokenGuard

HOST = "127.0.0.1"


class FakeEngine:
    """What the routes call. `events` has every call in order."""

    def __init__(self, gpus: int, groups: "FakeGroups | None") -> None:
        self.events: list[str] = []
        self.label = "default"
        self.loaded: dict[str, torch.Tensor] = {}
        self.groups = groups
        self.received: Queue[torch.Tensor] = Queue()
        self.refuses = ""
        """The order that it answers with an error."""
        self.sampled: list[dict[str, Any]] = []
        self.token_s = 0.0
        """Seconds that a token takes."""
        parallel = SimpleNamespace(world_size_across_dp=gpus, world_size=gpus)
        self.vllm_config = SimpleNamespace(parallel_config=parallel)

    async def pause_generation(self, mode: str, clear_cache: bool) -> None:
        self.events.append(f"pause {mode}")

    async def collective_rpc(self, method: str, timeout: float | None, args: tuple, kwargs: dict) -> None:
        self.events.append(method)
        if method == "reload_weights":
            assert list(Path(kwargs["weights_path"]).glob("*.safetensors"))

    async def update_weight_version(self, label: str) -> None:
        self.events.append("version")
        self.label = label

    async def get_weight_version(self) -> str:
        return self.label

    async def init_weight_transfer_engine(self, request: Any) -> None:
        self._refuse("init")
        assert self.groups is not None
        info = NCCLWeightTransferInitInfo(**request.init_info)
        await asyncio.to_thread(self.groups.join, info, self.received)
        self.events.append("init")

    async def update_weights(self, request: Any) -> None:
        self._refuse("update")
        info = NCCLWeightTransferUpdateInfo(**request.update_info)
        for name, dtype, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
            tensor = await asyncio.to_thread(self.received.get, timeout=20)
            assert (tensor.dtype, list(tensor.shape)) == (getattr(torch, dtype), shape), name
            self.loaded[name] = tensor
        self.events.append("update")

    def _refuse(self, order: str) -> None:
        if self.refuses == order:
            raise RuntimeError(f"no {order} here")

    def __getattr__(self, name: str) -> Any:
        """Any other call of the routes, which does nothing and succeeds."""

        async def called(*_: Any, **__: Any) -> bool:
            self.events.append(name)
            return True

        return called


class FakeGroups:
    """Communicators of NCCL, one after the other: every member must join before anyone goes on, and gets what rank 0
    broadcasts. One that has lost a member waits for ever."""

    def __init__(self) -> None:
        self.made: list[tuple[int, list[int]]] = []  # (size of the world, the first ranks of its servers)
        self._joined: list[tuple[int, Queue[torch.Tensor]]] = []
        self._complete = threading.Event()
        self.members: list[Queue[torch.Tensor]] = []
        self.hangs = False

    def join(self, info: NCCLWeightTransferInitInfo, member: "Queue[torch.Tensor]") -> None:
        self._joined.append((info.rank_offset, member))
        complete = self._complete
        assert complete.wait(20), "rank 0 never joined"

    def open_trainer_endpoint(self, place: NCCLTrainerInitInfo, servers: int) -> "FakeGroups":
        until = time.monotonic() + 20
        while len(self._joined) < servers:
            time.sleep(0.005)
            assert time.monotonic() < until, "a server never joined"
        self.made.append((place.world_size, sorted(offset for offset, _ in self._joined)))
        self.members = [member for _, member in self._joined]
        self._joined = []
        self._complete.set()
        self._complete = threading.Event()
        return self

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object) -> None:
        assert src == 0
        assert tensor.is_contiguous()
        while self.hangs:
            time.sleep(0.01)
        for member in self.members:
            member.put(tensor.clone())

    def destroy(self) -> None:
        pass


class FakeServer:
    """Serves until `kill`, which breaks off every response."""

    def __init__(self, gpus: int = 1, groups: FakeGroups | None = None) -> None:
        self.engine = FakeEngine(gpus, groups)
        self.model, self.vocabulary, self.ends = "", 8, False
        app = FastAPI()
        app.state.engine_client = self.engine
        for module in (weights, cache, rpc):
            app.include_router(module.router)
        app.add_api_route("/version", lambda: {"version": f"{SERVER_VERSION}0"})
        app.add_api_route("/v1/models", lambda: {"data": [{"root": self.model, "max_model_len": 10**6}]})
        config = {
            "model_config": {"dtype": "torch.bfloat16", "logprobs_mode": "processed_logprobs"},
            "device_config": {"device": "cuda"},
            "scheduler_config": {"async_scheduling": False},
        }
        environment = {"VLLM_USE_V2_MODEL_RUNNER": False}
        app.add_api_route("/server_info", lambda: {"vllm_config": config, "vllm_env": environment})
        app.add_api_route("/inference/v1/generate", self._generate, methods=["POST"])
        app.add_api_route("/health", lambda: "")
        if "VLLM_API_KEY" in os.environ:
            app.add_middleware(TokenGuard)
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of a server that was killed a moment ago
            free.bind((HOST, 0))
            self.port = free.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}"
        self._app = app
        self.start()

    def start(self) -> None:
        self.server = uvicorn.Server(
            uvicorn.Config(self._app, host=HOST, port=self.port, log_level="critical", lifespan="off")
        )
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.005)

    def kill(self) -> None:
        self.server.force_exit = self.server.should_exit = True
        for transport in [c.transport for c in self.server.server_state.connections]:
            self.server.servers[0].get_loop().call_soon_threadsafe(transport.abort)
        self.thread.join()

    async def _generate(self, request: Request) -> Any:
        body = await request.json()
        engine = self.engine
        if engine.label == "default":
            return JSONResponse({"error": "no weights"}, status_code=500)
        engine.sampled.append(body)

        async def events():
            given = body["sampling_params"]
            draw = random.Random(given["seed"])
            for index in range(given["max_tokens"]):
                await asyncio.sleep(engine.token_s)
                token = draw.randrange(max(given["stop_token_ids"]) + 1, self.vocabulary)
                if self.ends and draw.random() < 0.2:
                    token = given["stop_token_ids"][0]
                stops = token in given["stop_token_ids"]
                last = stops or index == given["max_tokens"] - 1
                choice = {
                    "token_ids": [token],
                    "logprobs": {"content": [{"logprob": -0.5}]},
                    "finish_reason": ("stop" if stops else "length") if last else None,
                    "weight_versions": [{"version": engine.label}] if last else None,
                }
                yield f"data: {json.dumps({'choices': [choice]})}\n\n"
                if stops:
                    break
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")
