"""The architecture of policies that a test can make in milliseconds."""

TINY = {
    "model_type": "qwen2", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "intermediate_size": 16, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip
