"""Which of torch's kernels compute where torch leaves the choice open, for every process that runs a policy.

On a GPU `scaled_dot_product_attention` chooses one of four kernels for each call. cuDNN's ends the process ("CUDA
error: misaligned address"; H100, torch 2.11) if a mask in 16 bits has rows that start at odd places: a slice of a wider
mask, or one of odd width. It is excluded for good: a block that lets it back in at its end would let it into a call
that another thread makes at that moment, and with `rollout.steps_ahead` sampler and trainer share the process.

What is left: flash attention where there is no mask; the memory-efficient kernel, which pads a mask to what it can
read, or plain products where there is one. On a CPU nothing changes, as cuDNN has no kernel there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch


def exclude_cudnn_attention() -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)


_AS_ON_GPU = ContextVar("as_on_gpu", default=False)


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """The tensor is on a GPU, or stands for one that is (`as_on_gpu`)."""
    return tensor.is_cuda or _AS_ON_GPU.get()


def has_storage(tensor: torch.Tensor) -> bool:
    """False in a block of `as_on_gpu`, where memory is counted and nothing computed."""
    return tensor.is_cuda or not _AS_ON_GPU.get()


@contextmanager
def as_on_gpu(simulates: bool = True) -> Iterator[None]:
    """Inside the block tensors on the CPU take the ways of a GPU: for tensors without storage, whose memory is counted.

    torch without CUDA can make no tensor on a GPU that has a gradient, not even one without storage.
    """
    before = _AS_ON_GPU.set(simulates)
    try:
        yield
    finally:
        _AS_ON_GPU.reset(before)
