"""A server with vLLM's own routes for weights and caches, on a fake engine, in a thread; it samples what it is told."""

import asyncio
import json
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo
from vllm.entrypoints.rl.online import api_router as weights
from vllm.entrypoints.serve.dev.cache import api_router as cache
from vllm.entrypoints.serve.dev.rpc import api_router as rpc

from dapo_lit.engines.vllm_server.engine import SERVER_VERSION
from dapo_lit.engines.vllm_server.guard import TokenGuard


class FakeEngine:
    """What the routes call. `events` has every call in order."""

    def __init__(self, gpus: int, group: "FakeGroup | None") -> None:
        self.events: list[str] = []
        self.label = "default"
        self.sampled: list[dict[str, Any]] = []
        self.loaded: dict[str, torch.Tensor] = {}
        self.token_s = 0.0
        """Seconds that a token takes."""
        self.group = group
        parallel = SimpleNamespace(world_size_across_dp=gpus, world_size=gpus)
        self.vllm_config = SimpleNamespace(parallel_config=parallel)

    async def pause_generation(self, mode: str, clear_cache: bool) -> None:
        self.events.append(f"pause {mode}")

    async def resume_generation(self) -> None:
        self.events.append("resume")

    async def collective_rpc(self, method: str, timeout: float | None, args: tuple, kwargs: dict) -> None:
        self.events.append(method)
        if method == "reload_weights":
            assert list(Path(kwargs["weights_path"]).glob("*.safetensors"))

    async def update_weight_version(self, label: str) -> None:
        self.events.append("version")
        self.label = label

    async def reset_prefix_cache(self, *options: bool) -> bool:
        self.events.append("reset_prefix_cache")
        return True

    async def init_weight_transfer_engine(self, request: Any) -> None:
        info = NCCLWeightTransferInitInfo(**request.init_info)
        assert self.group is not None
        await asyncio.to_thread(self.group.join, info)
        self.events.append("init")

    async def start_weight_update(self) -> None:
        self.events.append("start")

    async def update_weights(self, request: Any) -> None:
        info = NCCLWeightTransferUpdateInfo(**request.update_info)
        assert self.group is not None
        for name, dtype, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
            tensor = await asyncio.to_thread(self.group.receive, id(self))
            assert (tensor.dtype, list(tensor.shape)) == (getattr(torch, dtype), shape), name
            self.loaded[name] = tensor
        self.events.append("update")

    async def finish_weight_update(self, version: str | None) -> None:
        self.events.append("finish")

    async def shutdown_weight_transfer_engine(self) -> None:
        self.events.append("shutdown")


class FakeGroup:
    """A communicator of NCCL: every member must join before anyone goes on, and gets what rank 0 broadcasts."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.world: set[int] = set()
        self.sent: list[torch.Tensor] = []
        self.read: dict[int, int] = {}
        self.complete = threading.Event()
        self.workers = 0
        """Joined so far."""

    def join(self, info: NCCLWeightTransferInitInfo) -> None:
        self.offsets.append(info.rank_offset)
        self.world.add(info.world_size)
        assert self.complete.wait(20), "rank 0 never joined"

    def trainer_init(self, place: dict[str, Any], rank: int = 0) -> "FakeGroup":
        assert set(place) == {"master_address", "master_port", "world_size"}
        assert rank == 0
        self.world.add(place["world_size"])
        self.complete.set()
        return self

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object) -> None:
        assert src == 0
        assert tensor.is_contiguous()
        self.sent.append(tensor.clone())

    def receive(self, member: int) -> torch.Tensor:
        index = self.read.get(member, 0)
        until = time.monotonic() + 20
        while len(self.sent) <= index:
            assert time.monotonic() < until, "a tensor was announced and not sent"
            time.sleep(0.005)
        self.read[member] = index + 1
        return self.sent[index]

    def destroy(self) -> None:
        self.complete.clear()


class FakeServer:
    """Serves until `kill`, which breaks off every response."""

    def __init__(self, gpus: int = 1, group: FakeGroup | None = None, guarded: bool = False) -> None:
        self.engine = FakeEngine(gpus, group)
        self.model = ""
        app = FastAPI()
        app.state.engine_client = self.engine
        for module in (weights, cache, rpc):
            app.include_router(module.router)
        app.add_api_route("/version", lambda: {"version": f"{SERVER_VERSION}0"})
        app.add_api_route("/v1/models", lambda: {"data": [{"root": self.model, "max_model_len": 10**6}]})
        config = {
            "model_config": {"dtype": "torch.bfloat16", "logprobs_mode": "processed_logprobs"},
            "device_config": {"device_type": "cuda"},
        }
        app.add_api_route("/server_info", lambda: {"vllm_config": config})
        app.add_api_route("/inference/v1/generate", self._generate, methods=["POST"])
        app.add_api_route("/health", lambda: "")
        if guarded:
            app.add_middleware(TokenGuard)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._app = app
        self.start()

    def start(self) -> None:
        self.server = uvicorn.Server(uvicorn.Config(self._app, port=self.port, log_level="critical", lifespan="off"))
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
            length = body["sampling_params"]["max_tokens"]
            for index in range(length):
                await asyncio.sleep(engine.token_s)
                last = index == length - 1
                choice = {
                    "token_ids": [7],
                    "logprobs": {"content": [{"logprob": -0.5}]},
                    "finish_reason": "length" if last else None,
                    "weight_versions": [{"version": engine.label}] if last else None,
                }
                yield f"data: {json.dumps({'choices': [choice]})}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")
