"""The policy whose engines the contract tests start."""

from transformers import Qwen2Config

CONFIG = Qwen2Config(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=4096, tie_word_embeddings=True,
)  # fmt: skip
