"""The sizes of a policy: its model configuration, and the bytes of a token in an engine's cache."""

from collections.abc import Mapping
from typing import Any

from dapo_lit.config import ConfigError
from dapo_lit.config.sections import Policy

QWEN2_5 = {
    "0.5B": (24, 896, 4864, 14, 2, 151936, True), "1.5B": (28, 1536, 8960, 12, 2, 151936, True),
    "7B": (28, 3584, 18944, 28, 4, 152064, False), "32B": (64, 5120, 27648, 40, 8, 152064, False),
}  # fmt: skip
"""Sizes of Qwen2.5 from its config files, so that the shipped experiments are planned without a network."""


def qwen2_5(size: str) -> dict[str, Any]:
    """The model configuration of a size in QWEN2_5."""
    layers, hidden, mlp, heads, key_heads, vocabulary, tied = QWEN2_5[size]
    return {
        "model_type": "qwen2", "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": mlp,
        "num_attention_heads": heads, "num_key_value_heads": key_heads, "vocab_size": vocabulary,
        "tie_word_embeddings": tied, "max_position_embeddings": 32768,
    }  # fmt: skip


def architecture(policy: Policy) -> dict[str, Any]:
    """The policy's model configuration: of its config, of Qwen2.5, or what its folder or the hub says."""
    if policy.architecture is not None:
        return policy.architecture
    known = str(policy.path).removeprefix("Qwen/Qwen2.5-")
    if known in QWEN2_5:
        return qwen2_5(known)
    from transformers import AutoConfig

    from dapo_lit.policy.load import NO_CODE, fetched

    try:
        return dict(AutoConfig.from_pretrained(fetched(str(policy.path)), **NO_CODE).get_text_config().to_diff_dict())
    except (OSError, ValueError) as error:
        raise ConfigError(f"policy.path={policy.path}: no model configuration there ({error})") from None


def head_width(sizes: Mapping[str, Any]) -> int:
    """Width of an attention head of a model configuration."""
    return int(sizes.get("head_dim") or sizes["hidden_size"] // sizes["num_attention_heads"])


def cache_bytes(layers: int, key_heads: int, width: int) -> float:
    """Bytes of a token's keys and values in bf16."""
    return 2.0 * layers * key_heads * width * 2
