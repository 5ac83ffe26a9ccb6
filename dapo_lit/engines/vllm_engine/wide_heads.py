"""The same network with wider attention heads, for an engine that has no kernel for the width of the policy's.

Heads of d dimensions become heads of w > d. The new dimensions of q, k and v are zero, so they add nothing to a score
and nothing to an output, and the columns of the output projection that would read them are zero. Only the first d
dimensions are rotated, by the angles of d (`partial_rotary_factor`). The engine scales scores by w**-0.5 where the
policy has d**-0.5, so q is scaled by sqrt(w / d). Nothing else changes, and nothing is approximated but the rounding
of the scaled q to the dtype of the engine.

Described as a `llama`, whose implementation in vLLM reads `head_dim`, `partial_rotary_factor` and `qkv_bias`; only for
model types that are one but for these (qwen2, llama). Left out: norms of q and k (a mean over d is none over w),
sliding windows and rescaled rotary embeddings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, PretrainedConfig

EXACT_FOR = ("llama", "qwen2")


def head_dim_of(config: PretrainedConfig) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


@dataclass(frozen=True)
class WideHeads:
    """How weights with heads of `narrow` dimensions go into a network with heads of `wide`."""

    narrow: int
    wide: int

    def config(self, config: PretrainedConfig) -> LlamaConfig:
        """The wide network's description."""
        attention_bias = bool(getattr(config, "attention_bias", False))  # llama: of q, k, v and the output
        return LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=self.wide,
            hidden_act=config.hidden_act,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            tie_word_embeddings=config.tie_word_embeddings,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            pad_token_id=config.pad_token_id,
            attention_bias=attention_bias,
            qkv_bias=attention_bias or config.model_type == "qwen2",
            mlp_bias=bool(getattr(config, "mlp_bias", False)),
            # vLLM rotates int(wide * factor) dimensions: half a dimension more keeps the product from falling below.
            rope_parameters={**config.rope_parameters, "partial_rotary_factor": (self.narrow + 0.5) / self.wide},
        )

    @torch.no_grad()
    def tensor(self, name: str, tensor: Tensor) -> Tensor:
        """The wide network's tensor of this name (state-dict name): [heads * narrow, ...] rows of q, k and v become
        [heads * wide, ...], [hidden, heads * narrow] columns of the output projection [hidden, heads * wide]."""
        part = name.rpartition("self_attn.")[2].split(".")
        if part[0] in ("q_proj", "k_proj", "v_proj"):
            heads = tensor.unflatten(0, (-1, self.narrow))
            if part[0] == "q_proj":
                heads = heads * math.sqrt(self.wide / self.narrow)
            wide = heads.new_zeros(heads.shape[0], self.wide, *heads.shape[2:])
            wide[:, : self.narrow] = heads
            return wide.flatten(0, 1)
        if part == ["o_proj", "weight"]:
            heads = tensor.unflatten(1, (-1, self.narrow))
            wide = heads.new_zeros(*heads.shape[:2], self.wide)
            wide[..., : self.narrow] = heads
            return wide.flatten(1)
        return tensor


def wide_heads(config: PretrainedConfig, supported: Sequence[int]) -> WideHeads | None:
    """How to serve a policy with one of the `supported` widths of heads (ascending); None: its own is among them.

    Raises:
        ValueError: it is not, and the policy has no exact description with wider heads.
    """
    narrow = head_dim_of(config)
    if narrow in supported:
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    windowed = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    plain = rope.get("rope_type") == "default" and not windowed and "partial_rotary_factor" not in rope
    wide = next((width for width in supported if width > narrow), None)
    if wide is None or not plain or config.model_type not in EXACT_FOR:
        raise ValueError(
            f"vLLM on the CPU has no attention for heads of {narrow} dimensions, only for "
            f"{', '.join(map(str, supported))}; wider heads stand in for them in plain models of type "
            f"{' and '.join(EXACT_FOR)}, and this one ({config.model_type}) is none: take another policy, or "
            "rollout=torch"
        )
    return WideHeads(narrow, wide)
