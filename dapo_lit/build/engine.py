"""Builds the engine that samples from its config. Each case imports what it builds, so that a run loads one engine."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from dapo_lit.config.sections import ConfigError, Rollout
from dapo_lit.engines.protocol import RolloutEngine
from dapo_lit.policy.load import eos_ids
from dapo_lit.ranks import SINGLE_PROCESS, Ranks

if TYPE_CHECKING:
    from dapo_lit.engines.vllm_server.command import ServerSettings


def build_engine(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rollout: Rollout,
    device: torch.device | None = None,
    max_tokens: int | None = None,
    ranks: Ranks = SINGLE_PROCESS,
    dtype: torch.dtype | None = None,
    order_s: float | None = None,
) -> RolloutEngine:
    """Builds the engine; it has no weights before its first sync_weights.

    device: the torch engine's device; None: the policy's.
    max_tokens: largest number of tokens in a prompt and its response; None: the policy's context.
    ranks: the processes that train together; they divide vLLM servers among themselves.
    dtype: of weights and activations; None: the policy's.
    order_s: seconds that a vLLM server has for an order, such as to load weights; None: its default.
    """
    config, dtype = model.config, dtype or model.dtype
    try:
        ids = eos_ids(model, tokenizer)
        if rollout.engine == "torch":
            from dapo_lit.engines.torch_engine.engine import TorchEngine

            batch = rollout.max_batch_size
            return TorchEngine(config, eos_ids=ids, device=device or model.device, dtype=dtype, max_batch_size=batch)
        if rollout.vllm.placement == "server":
            from dapo_lit.engines.vllm_server.engine import VllmServerEngine

            at = server_settings(config, rollout, max_tokens, order_s)
            return VllmServerEngine(config, eos_ids=ids, dtype=dtype, settings=at, ranks=ranks)
        from dapo_lit.engines.vllm_engine.engine import VllmEngine
        from dapo_lit.engines.vllm_engine.options import VllmSettings

        settings = VllmSettings(
            max_model_tokens=max_tokens or config.max_position_embeddings,
            max_batch_size=rollout.max_batch_size,
            **rollout.vllm.model_dump(exclude={"placement", "server", "dtype", "kv_cache_gb"}),
            kv_cache_gb=rollout.vllm.cache_gb,
        )
        if rollout.vllm.placement == "process" or (
            rollout.vllm.placement == "auto" and torch.cuda.is_available() and ranks.size == 1
        ):
            from dapo_lit.engines.vllm_engine.process import VllmProcessEngine

            return VllmProcessEngine(config, eos_ids=ids, dtype=dtype, settings=settings)
        return VllmEngine(config, eos_ids=ids, dtype=dtype, settings=settings)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def server_settings(
    config: PretrainedConfig, rollout: Rollout, max_tokens: int | None, order_s: float | None = None
) -> "ServerSettings":
    from dapo_lit.engines.vllm_server.client import ORDER_S
    from dapo_lit.engines.vllm_server.command import ServerSettings

    server = rollout.vllm.server.model_dump()
    return ServerSettings(
        **server | {"folder": Path(server["folder"]).expanduser()},
        max_model_tokens=max_tokens or config.max_position_embeddings,
        max_batch_size=rollout.max_batch_size,
        order_s=order_s or ORDER_S,
        fp32_head=rollout.vllm.fp32_head,
        deterministic=rollout.vllm.deterministic,
        enforce_eager=rollout.vllm.enforce_eager,
    )


def ranks_per_engine(rollout: Rollout) -> int:
    """Neighbouring ranks that share one engine."""
    colocated = rollout.engine == "vllm" and rollout.vllm.placement != "server"
    return rollout.vllm.tensor_parallel if colocated else 1
