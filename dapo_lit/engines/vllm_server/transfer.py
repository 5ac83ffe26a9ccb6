"""Weights from the trainer's GPU to those of vLLM's servers over NCCL, by vLLM's own transfer engine.

Not run on GPUs yet. Rank 0 is rank 0 of a group that all workers of all servers join; the other ranks only take their
part in gathering shards. The trainer's environment needs vLLM for the communicator.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dapo_lit.engines.vllm_server.client import ServerClient
from dapo_lit.ranks import Ranks

DEVICE = "cuda"
PACKED = True
"""Small tensors are sent together."""
NOT_RUN = (
    "rollout.vllm.server.transfer=nccl: vLLM's weight transfer has not been run with this trainer yet; "
    "watch mismatch/kl, or take transfer=folder"
)


class NcclTransfer:
    """Raises ValueError without a GPU, and ImportError without vLLM in the trainer's environment."""

    def __init__(self, urls: Sequence[str], ranks: Ranks) -> None:
        if not torch.cuda.is_available():
            raise ValueError("rollout.vllm.server.transfer=nccl needs a GPU in the trainer; set transfer=folder")
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine
        from vllm.utils.network_utils import get_ip, get_open_port

        if ranks.rank == 0:
            print(NOT_RUN, flush=True)
        self._source = _Source()
        self._fleet = _Fleet(ServerClient(urls))
        world = 1 + sum(self._fleet.sizes)
        info = NCCLTrainerInitInfo(get_ip(), get_open_port(), world, packed=PACKED, rank=ranks.rank)
        self._engine = NCCLTrainerWeightTransferEngine.trainer_init(info, client=self._fleet, source=self._source)

    def send(self, tensors: Callable[[], Iterable[tuple[str, Tensor]]], dtype: torch.dtype) -> list[str]:
        """Sends every tensor in `dtype` and returns the names; all ranks call it."""
        self._source.tensors, self._source.dtype = tensors, dtype
        self._engine.send_weights()
        return [meta.name for meta in self._source.metadata()]

    def close(self) -> None:
        """Leaves the group. Raises ServerError where a server is gone."""
        try:
            if self._engine.is_sender:
                self._fleet.shutdown_weight_transfer_engine()
        finally:
            self._engine.shutdown()
            self._fleet.client.close()


class _Source:
    """vLLM's `WeightSource`: the policy's tensors, gathered and in the engine's dtype, in the same order every time."""

    tensors: Callable[[], Iterable[tuple[str, Tensor]]]
    dtype: torch.dtype

    def __init__(self) -> None:
        self._metadata: list[Any] = []

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        # The workers are told the shapes first. They never change, so shards are gathered for this once in a run.
        self._metadata = self._metadata or [ParamMeta(n, self.dtype, tuple(t.shape)) for n, t in self.tensors()]
        return self._metadata

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.tensors():
            yield name, tensor.detach().to(DEVICE, self.dtype, copy=True).contiguous()


class _Fleet:
    """vLLM's sync client for several servers; their workers are numbered one server after the other."""

    def __init__(self, client: ServerClient) -> None:
        self.client = client
        self.sizes = [int(client.get(url, "/get_world_size")["world_size"]) for url in client.urls]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        offsets = [1 + sum(self.sizes[:index]) for index in range(len(self.sizes))]
        infos = ({"init_info": init_info | {"rank_offset": offset}} for offset in offsets)
        # At once: the workers wait for each other in it.
        self._post("/init_weight_transfer_engine", dict(zip(self.client.urls, infos, strict=True)))

    def start_weight_update(self) -> None:
        self._post("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._post("/update_weights", {url: {"update_info": update_info} for url in self.client.urls})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._post("/finish_weight_update")

    def shutdown_weight_transfer_engine(self) -> None:
        self._post("/shutdown_weight_transfer_engine")

    def _post(self, path: str, bodies: dict[str, Any] | None = None) -> None:
        """Raises the first ServerError."""
        for answer in self.client.post(path, bodies or dict.fromkeys(self.client.urls)):
            if isinstance(answer, BaseException):
                raise answer
