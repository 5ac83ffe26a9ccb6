"""float32 weights computing in bfloat16: the numbers of a bfloat16 model, gradients and weights in float32."""

from copy import deepcopy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from dapo_lit.policy.attention import layout
from dapo_lit.policy.head import token_logprobs
from dapo_lit.policy.wrap import run, wrap_layers

SIZES = {
    "qwen2": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, "tie_word_embeddings": True,
    },
    "llama": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "tie_word_embeddings": False,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
}  # fmt: skip
IDS = torch.arange(12) * 7 % 50
ROWS, TARGETS = torch.arange(11), IDS[1:]


def tiny(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, vocab_size=50, **SIZES[family])).eval()


def logprobs(model: PreTrainedModel) -> torch.Tensor:
    return run(model, token_logprobs, IDS, layout([12]), ROWS, TARGETS, temperature=1.0)[0]


def gradients(model: PreTrainedModel, passes: int = 1) -> dict[str, torch.Tensor]:
    for _ in range(passes):
        logprobs(model).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("family", sorted(SIZES))
def test_log_probs_and_gradients_are_those_of_16_bit_weights_and_weights_stay_wide(family, recomputes):
    model, reference = tiny(family), tiny(family)
    for parameter in reference.parameters():
        parameter.data = parameter.data.bfloat16()
    before = deepcopy(model.state_dict())
    wrap_layers(model, compute_in=torch.bfloat16, recomputes=recomputes)
    with torch.no_grad():
        assert torch.equal(logprobs(model), logprobs(reference))
    wide, narrow = gradients(model), gradients(reference)
    assert wide.keys() == narrow.keys()
    for name, gradient in wide.items():
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, narrow[name].float()), name
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_gradients_of_several_passes_add_up_in_float32():
    model = tiny("qwen2")
    wrap_layers(model, compute_in=torch.bfloat16)
    once = {name: gradient.clone() for name, gradient in gradients(model).items()}
    model.zero_grad()
    thrice = gradients(model, passes=3)
    assert all(torch.equal(thrice[name], once[name] + once[name] + once[name]) for name in once)
    assert not all(torch.equal(g, g.bfloat16().float()) for g in thrice.values())  # bfloat16 would have rounded these
