"""The attention of a GPU: the operator of torch with a reference kernel, against each sequence in a row of its own."""

import inspect

import pytest
import torch
from test_attention import FAMILIES, LENGTHS, apart, build, gradient, shared_prompts, tokens
from varlen_kernel import in_use

from dapo_lit.policy.attention import layout, packed_hidden

CASES = [name for name in FAMILIES if "capped" not in name]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("packing", [apart, shared_prompts])
def test_hidden_states_and_gradients_are_those_of_separate_sequences(name, packing, monkeypatch):
    """Grouped heads, a window of 7 tokens, unequal lengths, and responses that continue a shared prompt."""
    case, separate, model = packing(), build(FAMILIES[name]), build(FAMILIES[name])
    states = case.states_apart(separate)
    weights = torch.randn(len(states), 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    reference = gradient(separate, states, weights)
    with in_use(monkeypatch) as calls:
        packed = packed_hidden(model, torch.cat(case.segments), case.layout)
        found = gradient(model, packed, weights)
    assert calls == ["forward"] * 3 + ["backward"] * 3  # one a layer
    torch.testing.assert_close(packed, states, rtol=0, atol=1e-12)
    assert (found - reference).norm() < 1e-7 * reference.norm()  # transformers' norms round to float32


def test_keys_and_values_of_grouped_heads_are_not_repeated_where_torch_can_group_them(monkeypatch):
    from torch.nn.attention import varlen

    widths, original = [], varlen.varlen_attn

    def recorded(query, key, *args, enable_gqa: bool = False, **kwargs):
        widths.append((query.shape[1], key.shape[1]))
        return original(query, key, *args, **({"enable_gqa": True} if enable_gqa else {}), **kwargs)

    can_group = "enable_gqa" in varlen.varlen_attn.__kwdefaults__
    if not can_group:
        recorded.__signature__ = inspect.signature(original)
    monkeypatch.setattr(varlen, "varlen_attn", recorded)
    with in_use(monkeypatch):
        packed_hidden(build(FAMILIES["qwen3, grouped heads"]), torch.cat(tokens(LENGTHS)), layout(LENGTHS))
    assert widths == [(4, 2 if can_group else 4)] * 3
