"""The sampler's log-probs against the model's own, before an evaluation."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from dapo_lit.config import ConfigError
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.preflight.policy import check_sampler

PROMPT = np.array([5, 6, 7], np.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_engine_with_other_weights_than_the_model_is_refused(dtype):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=50, **sizes), dtype=dtype).eval()
    engine = TorchEngine(model.config, eos_ids=(0,), device=torch.device("cpu"), dtype=dtype, max_batch_size=4)
    engine.sync_weights(model.state_dict().items(), 0)
    assert check_sampler(engine, model, PROMPT, limit=8).words.endswith("sampled tokens are the model's own")
    with torch.no_grad():
        model.lm_head.weight.mul_(10)  # as an engine that leaves out a scale of the logits
    with pytest.raises(ConfigError, match=r" nats .*'llama'"):
        check_sampler(engine, model, PROMPT, limit=8)
