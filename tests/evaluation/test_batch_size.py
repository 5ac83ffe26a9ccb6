"""How many sequences an evaluation decodes at once."""

from types import SimpleNamespace

import pytest
from evaluation_config import evaluation
from transformers import AutoModelForCausalLM, Qwen2Config

from dapo_lit.evaluation.resumable import batch_size

TOKEN_BYTES = 2 * 2 * 2 * 8 * 4
"""Keys and values, 2 layers, 2 key heads, 8 dimensions, float32."""


@pytest.mark.parametrize(
    ("most", "rows"),
    [(512, 100), (90, 90)],  # 10,000 tokens of cache / 100 of the longest sequence
)
def test_keys_and_values_fit_the_cache(most, rows):
    model = AutoModelForCausalLM.from_config(
        Qwen2Config(
            vocab_size=20, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2,
        )
    )  # fmt: skip
    config = evaluation(
        "policy=tiny", "benchmark=chain_sum_heldout", f"cache_gb={TOKEN_BYTES * 10_000 / 1e9}",
        f"rollout.max_batch_size={most}",
    )  # fmt: skip
    assert batch_size(config, model, SimpleNamespace(max_tokens=100)) == rows
