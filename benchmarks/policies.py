"""The policies of the benchmarks: randomly initialised Qwen2 models, and SmolLM2-135M from its folder."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

SIZES: dict[str, dict[str, int]] = {
    # About the size of `policy=tiny`.
    "0.3M": {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4},
    "7M": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 4},
}
SMOLLM2 = Path("models/smollm2_135m")


def policy(size: str, *, vocabulary: int = 64, context: int = 1024) -> PreTrainedModel:
    """`0.3M`, `7M` or `135M`, in float32.

    Raises:
        FileNotFoundError: the folder of 135M does not exist.
    """
    if size == "135M":
        if not SMOLLM2.is_dir():
            raise FileNotFoundError(f"{SMOLLM2} does not exist; run `make model`")
        return AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32).eval()
    torch.manual_seed(0)
    shape = SIZES[size]
    config = Qwen2Config(
        vocab_size=vocabulary,
        num_key_value_heads=shape["num_attention_heads"],
        max_position_embeddings=context,
        tie_word_embeddings=True,
        **shape,
    )
    return AutoModelForCausalLM.from_config(config).eval()
