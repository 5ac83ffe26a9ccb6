"""The engine serves heads of 24 dimensions, which policies made here have and vLLM's kernel on the CPU has not."""

import torch
from transformers import Qwen2Config
from vllm_case import CONFIG, EOS, SETTINGS, largest_difference, random_model

from dapo_lit.engines.vllm_engine.engine import VllmEngine

NARROW = Qwen2Config(**{**CONFIG.to_dict(), "hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 3})


def test_heads_that_vllm_has_no_kernel_for_are_served_by_wider_ones():
    model = random_model(NARROW)
    engine = VllmEngine(NARROW, eos_ids=[EOS], dtype=torch.float32, settings=SETTINGS)
    try:
        for version, name in enumerate(("q_proj.weight", "k_proj.bias", "v_proj.weight", "o_proj.weight")):
            with torch.no_grad():
                model.get_parameter(f"model.layers.1.self_attn.{name}").mul_(1.5)
            engine.sync_weights(model.state_dict().items(), version)
            assert largest_difference(engine, model, temperature=0.8) < 1e-4, name
    finally:
        engine.close()
