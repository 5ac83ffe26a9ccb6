"""Weights from the trainer's GPU to those of vLLM's servers over NCCL.

Not run: written against vLLM 0.32, on a machine without a GPU. Rank 0 is rank 0 of a group that all workers of all
servers join; every bucket of tensors is announced by HTTP and broadcast one tensor after the other. The trainer's
environment needs vLLM for the communicator. Left out: packing small tensors into one broadcast.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dapo_lit.engines.vllm_server.client import ServerClient
from dapo_lit.ranks import Ranks

BUCKET_BYTES = 1 << 30
DEVICE = "cuda"
NOT_RUN = (
    "rollout.vllm.server.transfer=nccl: written against the weight transfer of vLLM 0.32 and not run yet; "
    "watch mismatch/kl, or take transfer=folder"
)


class NcclTransfer:
    """Raises ValueError without a GPU or without vLLM in the trainer's environment."""

    def __init__(self, urls: Sequence[str], ranks: Ranks, request_s: float) -> None:
        if not torch.cuda.is_available():
            raise ValueError("rollout.vllm.server.transfer=nccl needs a GPU in the trainer; set transfer=folder")
        self._group: Any = None
        self._client: ServerClient | None = None
        if ranks.rank > 0:
            return
        print(NOT_RUN, flush=True)
        try:
            from vllm.distributed.weight_transfer.nccl_common import trainer_init
            from vllm.utils.network_utils import get_ip, get_open_port
        except ImportError as error:
            raise ValueError(
                "rollout.vllm.server.transfer=nccl needs vLLM 0.32 in the trainer's environment "
                f"({error}); set transfer=folder"
            ) from None
        client = self._client = ServerClient(urls, request_s)
        sizes = [int(client.get(url, "/get_world_size")["world_size"]) for url in client.urls]
        place = {"master_address": get_ip(), "master_port": get_open_port(), "world_size": 1 + sum(sizes)}
        # The workers wait for rank 0 inside the request, so it is made from another thread.
        waiting = [
            client.start(
                client.ask(
                    "POST",
                    url,
                    "/init_weight_transfer_engine",
                    {"init_info": place | {"rank_offset": 1 + sum(sizes[:index]), "packed": False}},
                )
            )
            for index, url in enumerate(client.urls)
        ]
        self._group = trainer_init(place)
        for future in waiting:
            future.result()

    def send(self, named_tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> list[str]:
        """Sends every tensor in `dtype`; the names. Ranks other than 0 only take their part in gathering them."""
        if self._client is None:
            return [name for name, _ in named_tensors]
        self._client.post_all("/start_weight_update")
        names: list[str] = []
        for bucket in _buckets(named_tensors, dtype):
            names += bucket
            about = {
                "names": list(bucket),
                "dtype_names": [str(dtype).removeprefix("torch.")] * len(bucket),
                "shapes": [list(tensor.shape) for tensor in bucket.values()],
            }
            body = {"update_info": about}
            waiting = [
                self._client.start(self._client.ask("POST", url, "/update_weights", body)) for url in self._client.urls
            ]
            for tensor in bucket.values():
                self._group.broadcast(tensor, src=0, stream=torch.cuda.current_stream())
            torch.cuda.current_stream().synchronize()  # the bucket is freed next
            for future in waiting:
                future.result()
        self._client.post_all("/finish_weight_update")
        return names

    def close(self) -> None:
        """Leaves the group. Raises ServerError where a server is gone."""
        if self._client is None:
            return
        try:
            self._client.post_all("/shutdown_weight_transfer_engine")
        finally:
            self._group.destroy()
            self._client.close()


def _buckets(named_tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """Copies on the GPU, as many as BUCKET_BYTES hold."""
    bucket: dict[str, Tensor] = {}
    size = 0
    for name, tensor in named_tensors:
        copy = tensor.detach().to(DEVICE, dtype, copy=True).contiguous()
        if bucket and size + copy.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = copy
        size += copy.nbytes
    if bucket:
        yield bucket
