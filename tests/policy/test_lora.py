"""Adapters: initial values and merging."""

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from dapo_lit.policy.lora import (
    add_adapters,
    init_adapters,
    is_adapter,
    merge,
    merged_matrix,
    without_adapters,
)
from dapo_lit.policy.sharding import full_tensors

CONFIG = Qwen2Config(
    vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, tie_word_embeddings=True,
)  # fmt: skip
IDS = torch.arange(1, 13).view(2, 6)


def base(seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIG, dtype=dtype).eval()


def adapted(seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model = base(dtype=dtype)
    add_adapters(model, rank=3, alpha=6.0, targets=["q_proj", "down_proj"])
    init_adapters(model, seed)
    return model


def trained(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """With adapters that change the logits."""
    model, generator = adapted(dtype=dtype), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_adapter(name):
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    return model(IDS).logits


def test_the_merged_matrix_is_the_hand_worked_one():
    matrix, a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0], [0.5]])
    # B A = [[2, -2], [0.5, -0.5]], half of it added
    assert merged_matrix(matrix, a, b, 0.5).tolist() == [[2.0, 1.0], [3.25, 3.75]]
    # bfloat16 has 8 bits: 3.01 + 0.01 is rounded once, from the exact sum
    narrow = merged_matrix(torch.tensor([[3.015625]]).bfloat16(), torch.tensor([[0.01]]), torch.tensor([[1.0]]), 1.0)
    assert narrow.item() == torch.tensor(3.025625).bfloat16().item()


def test_first_values_of_adapters_depend_on_the_seed_and_the_name_and_on_nothing_drawn_before():
    one = adapted()
    torch.manual_seed(99)
    again, other = adapted(), adapted(seed=1)
    tensors = [{n: p.detach() for n, p in m.named_parameters() if ".lora_A." in n} for m in (one, again, other)]
    for name, first in tensors[0].items():
        bound = first.shape[1] ** -0.5
        assert 0.8 * bound < first.abs().max() <= bound
        assert torch.equal(first, tensors[1][name])
        assert not torch.equal(first, tensors[2][name])
    assert not torch.equal(*(first for name, first in tensors[0].items() if "q_proj" in name))


def test_what_is_sent_to_an_engine_has_the_names_of_the_base_and_the_adapted_policys_logits():
    model, plain = trained(), base()
    sent = dict(full_tensors(model))
    assert sent.keys() == plain.state_dict().keys()
    plain.load_state_dict(sent)
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-5, atol=1e-6)
    assert (logits(plain) - logits(base())).abs().max() > 0.1
    saved = base()
    merge(saved, {n: p for n, p in model.state_dict().items() if is_adapter(n)}, scale=2.0)
    assert all(torch.equal(p, plain.state_dict()[n]) for n, p in saved.state_dict().items())


def test_without_adapters_it_is_the_base_and_afterwards_the_adapted_policy_with_the_same_trained_parameters():
    model = trained()
    before, trains = logits(model), [p.requires_grad for p in model.parameters()]
    with without_adapters(model):
        assert torch.equal(logits(model), logits(base()))
    assert torch.equal(logits(model), before)
    assert [p.requires_grad for p in model.parameters()] == trains


def test_adapters_of_narrow_matrices_are_float32():
    model = trained(torch.bfloat16)
    assert {p.dtype for n, p in model.named_parameters() if is_adapter(n)} == {torch.float32}
    assert {p.dtype for n, p in model.named_parameters() if not is_adapter(n)} == {torch.bfloat16}
    assert {t.dtype for _, t in full_tensors(model)} == {torch.bfloat16}
    assert logits(model).dtype == torch.bfloat16
