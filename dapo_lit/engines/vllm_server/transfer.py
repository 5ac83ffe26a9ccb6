"""Weights from the trainer's GPU to those of vLLM's servers over NCCL, by vLLM's own transfer engine.

Rank 0 of the trainer is rank 0 of a group that all workers of all servers join; the other ranks only take their part in
gathering shards. The trainer's environment needs vLLM for the communicator. Not run on GPUs yet: the tests replace the
communicator, and everything else is vLLM's.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

from dapo_lit.engines.protocol import EngineError
from dapo_lit.engines.vllm_engine.installed import check_installed
from dapo_lit.engines.vllm_server.client import ServerError
from dapo_lit.engines.vllm_server.servers import Servers
from dapo_lit.log import log
from dapo_lit.ranks import Ranks

T = TypeVar("T")
DEVICE = "cuda"
PACKED = True
"""Small tensors are sent together."""
GRACE_S = 10.0
"""Seconds in which a call of NCCL may still end after a server has refused its part; then it waits for ever."""
NOT_RUN = (
    "rollout.vllm.server.transfer=nccl has not been run on GPUs; watch mismatch/kl, or take rollout.vllm.server."
    "transfer=folder"
)


class NcclTransfer:
    """The group of the servers that are in use; a new one whenever they are others, or one of them has started anew.

    Raises ValueError without a GPU, or without vLLM in the trainer's environment.
    """

    def __init__(self, servers: Servers, ranks: Ranks, dtype: torch.dtype) -> None:
        if not torch.cuda.is_available():
            raise ValueError("rollout.vllm.server.transfer=nccl needs a GPU in the trainer; set transfer=folder")
        check_installed()
        if ranks.rank == 0:
            log.warning(NOT_RUN)
        self._servers, self._ranks = servers, ranks
        self._source = _Source(dtype)
        self._group: Any = None  # vLLM's engine of the trainer, on rank 0
        self._fleet: _Fleet | None = None
        self._label = ""

    def join(self) -> str | None:
        """Sees to it that all servers in use are in the group. A collective. What is wrong, if they cannot be."""
        return self._ranks.first(self._joined)

    def _joined(self) -> str | None:
        urls = [url for index, url in enumerate(self._servers.client.urls) if index not in self._servers.lost]
        try:
            if self._fleet and self._fleet.urls == urls and self._fleet.have(self._label):
                return None
            self._leave()
            self._fleet = _Fleet(self._servers, urls)
            self._group = self._fleet.attend(self._open)
        except (ServerError, EngineError, ImportError, RuntimeError) as error:  # of vLLM before 0.32, and of NCCL
            self._fleet = None
            return f"{error}".partition("\n")[0]
        return None

    def _open(self) -> Any:
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine
        from vllm.utils.network_utils import get_ip, get_open_port

        assert self._fleet is not None
        info = NCCLTrainerInitInfo(get_ip(), get_open_port(), 1 + sum(self._fleet.sizes), rank=0, packed=PACKED)
        return NCCLTrainerWeightTransferEngine.trainer_init(info, client=self._fleet, source=self._source)

    def send(self, tensors: Callable[[], Iterable[tuple[str, Tensor]]], label: str) -> list[str]:
        """Sends every tensor and returns the names. A collective; `tensors` are gathered twice in the first call.

        Raises EngineError on every rank if a server fails: NCCL cannot leave out a member in the middle.
        """
        self._source.tensors = tensors
        names = [meta.name for meta in self._source.metadata()]
        fault = None
        if self._group is None:
            for _ in tensors():  # gathering shards takes all ranks
                pass
        else:
            assert self._fleet is not None
            self._source.begin()
            try:
                self._fleet.attend(self._group.send_weights)
                self._label = label
            except (ServerError, EngineError, RuntimeError) as error:
                fault = f"{error}".partition("\n")[0]
                self._source.finish()
                # The others still wait in NCCL: neither they nor the group would answer when told to end.
                self._fleet = self._group = None
        if found := self._ranks.gather(fault)[0]:
            raise EngineError(f"rollout.vllm.server.transfer=nccl: {found}; start the servers again before you resume")
        return names

    def _leave(self) -> None:
        if self._fleet is not None:
            with suppress(ServerError):  # a server that is gone is in no group
                self._fleet.shutdown_weight_transfer_engine()
        if self._group is not None:
            self._group.shutdown()
        self._fleet = self._group = None

    def close(self) -> None:
        self._leave()


class _Source:
    """vLLM's `WeightSource`: the policy's tensors, gathered and in the engine's dtype, in the same order every time."""

    tensors: Callable[[], Iterable[tuple[str, Tensor]]]

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._metadata: list[Any] = []
        self._left: Iterator[tuple[str, Tensor]] = iter(())

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        # The workers are told the shapes first. They never change, so shards are gathered for this once in a run.
        self._metadata = self._metadata or [ParamMeta(n, self._dtype, tuple(t.shape)) for n, t in self.tensors()]
        return self._metadata

    def begin(self) -> None:
        """Before a transfer: one that fails before its first tensor has left them all."""
        self._left = iter(self.tensors())

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._left:
            yield name, tensor.detach().to(DEVICE, self._dtype, copy=True).contiguous()

    def finish(self) -> None:
        """Takes what a transfer has left, for the ranks that gather it."""
        for _ in self._left:
            pass


class _Fleet:
    """vLLM's sync client for several servers; their workers are numbered one server after the other."""

    def __init__(self, servers: Servers, urls: list[str]) -> None:
        self.urls, self._client = urls, servers.client
        self.sizes = [int(self._client.get(url, "/get_world_size")["world_size"]) for url in urls]
        self._errors: list[ServerError] = []

    def have(self, label: str) -> bool:
        """Whether every server has the weights of `label`, as one that was started again has not."""
        return all(self._client.get(url, "/weight_info")["weight_version"] == label for url in self.urls)

    def attend(self, call: Callable[[], T]) -> T:
        """What `call`, which gives orders and waits in NCCL, returns. Raises the error of a server, or its own.

        In a thread: NCCL waits for ever for a server that has refused its part.
        """
        device = torch.cuda.current_device() if DEVICE == "cuda" else None
        found: list[T] = []
        raised: list[BaseException] = []

        def run() -> None:
            try:
                with torch.no_grad():
                    if device is not None:
                        torch.cuda.set_device(device)
                    found.append(call())
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run, name="weights", daemon=True)
        thread.start()
        until = None
        while thread.is_alive() and (until is None or time.monotonic() < until):
            thread.join(0.02)
            if until is None and self._errors:
                until = time.monotonic() + GRACE_S
        if self._errors:
            raise self._errors[0]
        if raised:
            raise raised[0]
        return found[0]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        offsets = [1 + sum(self.sizes[:index]) for index in range(len(self.sizes))]
        infos = ({"init_info": init_info | {"rank_offset": offset}} for offset in offsets)
        # At once: the workers wait for each other in it.
        self._post("/init_weight_transfer_engine", dict(zip(self.urls, infos, strict=True)))

    def start_weight_update(self) -> None:
        self._post("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._post("/update_weights", {url: {"update_info": update_info} for url in self.urls})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._post("/finish_weight_update")

    def shutdown_weight_transfer_engine(self) -> None:
        self._post("/shutdown_weight_transfer_engine")

    def _post(self, path: str, bodies: dict[str, Any] | None = None) -> None:
        """Raises the first error, without waiting for the servers that wait for the one that failed."""
        orders = [
            self._client.start(self._client.order(url, path, body))
            for url, body in (bodies or dict.fromkeys(self.urls)).items()
        ]
        ended, _ = wait(orders, return_when=FIRST_EXCEPTION)
        for order in ended:
            if isinstance(error := order.exception(), ServerError):
                self._errors.append(error)
            order.result()
