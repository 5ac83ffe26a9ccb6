"""In the place of NCCL on a CPU: weights go through the store at which the members of a group meet.

All else of a transfer is vLLM's: its routes, its packing and unpacking, its loading in place. A server takes this in by
`--worker-extension-cls store_transfer.Extension`, as each of its workers imports that module.
"""

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.device_communicators import pynccl
from vllm.distributed.weight_transfer import packed_tensor


class StoreCommunicator:
    """What a transfer uses of vLLM's `PyNcclCommunicator`."""

    def __init__(self, group: Any, device: object) -> None:
        self._group = group

    def broadcast(self, tensor: Tensor, src: int, stream: object = None) -> None:
        sent = self._group.broadcast_obj(tensor if self._group.rank == src else None, src)
        if self._group.rank != src:
            tensor.copy_(sent)

    def destroy(self) -> None:
        pass


REPLACED = (
    (pynccl, "PyNcclCommunicator", StoreCommunicator),
    (packed_tensor, "_get_streams", lambda _, number: [SimpleNamespace(synchronize=lambda: None)] * number),
    (torch.accelerator, "current_device_index", lambda: 0),
    (torch.cuda, "stream", lambda _: nullcontext()),
)


class Extension:
    """Adds nothing to a worker; on its import the worker's process is changed, and the test's is not."""

    if "vllm.v1.worker.cpu_worker" in sys.modules:
        for place, name, value in REPLACED:
            setattr(place, name, value)
