"""How many sequences an evaluation decodes at once."""

from types import SimpleNamespace

import pytest
from evaluation_config import evaluation
from transformers import AutoModelForCausalLM, Qwen2Config

from dapo_lit.evaluation.resumable import batch_size

TOKEN_BYTES = 2 * 2 * 2 * 8 * 4
"""Keys and values, 2 layers, 2 key heads, 8 dimensions, float32."""


@pytest.mark.parametrize(
    ("cuda_graphs", "most", "rows"),
    [
        ("false", 512, 100),  # 10,000 tokens of cache / 100 of the longest sequence
        ("false", 90, 90),
        ("true", 512, 64),  # 100 slots are rounded up to 128: 78 fit, and 65 rows would be rounded up to 96
        ("true", 12, 12),
    ],
)
def test_keys_and_values_fit_the_cache_as_the_sampler_lays_them_out(cuda_graphs, most, rows):
    model = AutoModelForCausalLM.from_config(
        Qwen2Config(
            vocab_size=20, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2,
        )
    )  # fmt: skip
    config = evaluation(
        "policy=tiny", "benchmark=chain_sum_heldout", f"cache_gb={TOKEN_BYTES * 10_000 / 1e9}",
        f"rollout.torch.cuda_graphs={cuda_graphs}", f"rollout.max_batch_size={most}",
    )  # fmt: skip
    assert batch_size(config, model, SimpleNamespace(max_tokens=100)) == rows
