"""Packed attention gives each sequence the hidden states and gradients that it has in a row of its own."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from dapo_lit.policy.attention import layout, packed_hidden

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "head_dim": 8,
}
FAMILIES = {
    "qwen2": Qwen2Config(**SIZES, num_key_value_heads=4),
    "qwen3, grouped heads": Qwen3Config(**SIZES, num_key_value_heads=2),
    "llama, one key head": LlamaConfig(**SIZES, num_key_value_heads=1),
    "mistral, a window of 7": MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=7),
    "gemma2, soft-capped scores and a window of 7": Gemma2Config(
        **SIZES, num_key_value_heads=2, sliding_window=7, attn_logit_softcapping=0.5, attn_implementation="eager"
    ),
}
EXACT = dict.fromkeys(FAMILIES, 1e-12) | {"gemma2, soft-capped scores and a window of 7": 5e-6}
"""Of float64. The reference is transformers' eager attention for gemma2, whose softmax is float32."""
LENGTHS = [9, 31, 1, 30, 2, 17, 12, 31, 5]


def build(config, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(deepcopy(config)).to(dtype).eval()


def tokens(lengths: list[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 50, (n,), generator=generator) for n in lengths]


def gradient(model: PreTrainedModel, hidden: Tensor, weights: Tensor) -> Tensor:
    model.zero_grad()
    (model.get_output_embeddings()(hidden) * weights).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", FAMILIES)
def test_hidden_states_and_gradients_are_those_of_separate_sequences(name):
    sequences = tokens(LENGTHS)
    weights = torch.randn(sum(LENGTHS), 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    separate = build(FAMILIES[name])
    apart = torch.cat([separate.base_model(s[None]).last_hidden_state[0] for s in sequences])
    packed_model = build(FAMILIES[name])
    packed = packed_hidden(packed_model, torch.cat(sequences), layout(LENGTHS))
    torch.testing.assert_close(packed, apart, rtol=0, atol=EXACT[name])
    reference = gradient(separate, apart, weights)
    assert (gradient(packed_model, packed, weights) - reference).norm() < EXACT[name] * reference.norm()


@pytest.mark.parametrize("name", FAMILIES)
def test_in_float32_they_are_those_of_a_padded_batch_within_2e_6(name):
    sequences = tokens(LENGTHS)
    model = build(FAMILIES[name], torch.float32)
    padded = model.base_model(torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)).last_hidden_state
    by_row = torch.cat([padded[i, :n] for i, n in enumerate(LENGTHS)])
    weights = torch.randn(sum(LENGTHS), 50, generator=torch.Generator().manual_seed(2))
    reference = gradient(model, by_row, weights)
    packed = packed_hidden(model, torch.cat(sequences), layout(LENGTHS))
    assert (packed - by_row).norm() < 2e-6 * by_row.norm()
    assert (gradient(model, packed, weights) - reference).norm() < 2e-6 * reference.norm()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_every_token_has_one_place_and_similar_lengths_share_a_bucket(lengths):
    made = layout(lengths)
    total = sum(lengths)
    assert made.gather[made.restore].tolist() == list(range(total))
    assert made.positions[0].tolist() == [i for n in lengths for i in range(n)]
    assert made.cumulative_queries[-1] == total
    assert made.longest_query == max(lengths)
    assert sum(b.num_sequences for b in made.buckets) == len(lengths)
    assert len(made.gather) <= 1.25 * total + len(lengths)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_shared_prompt_gives_the_hidden_states_and_gradients_of_separate_sequences(name):
    prompt, other, *responses = tokens([11, 4, 6, 1, 20, 9, 15])
    # two prompts: the first with three responses, the second with one, and a sequence of its own
    segments = [prompt, *responses[:3], other, responses[3], responses[4]]
    parents = [-1, 0, 0, 0, -1, 4, -1]
    sequences = [*(torch.cat([prompt, r]) for r in responses[:3]), torch.cat([other, responses[3]]), responses[4]]
    weights = torch.randn(sum(map(len, segments)), 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    separate = build(FAMILIES[name])
    apart = [separate.base_model(s[None]).last_hidden_state[0] for s in sequences]
    # In the order of the segments; the prompt's own states from its first sequence.
    by_segment = [apart[0][:11], *(h[11:] for h in apart[:3]), apart[3], apart[4]]
    reference = torch.cat(by_segment)
    packed_model = build(FAMILIES[name])
    lengths = [len(s) for s in segments]
    packed = packed_hidden(packed_model, torch.cat(segments), layout(lengths, parents))
    torch.testing.assert_close(packed, reference, rtol=0, atol=EXACT[name])
    expected = gradient(separate, reference, weights)
    # Transformers' norms round to float32: there the gradients of three sequences meet in another order.
    assert (gradient(packed_model, packed, weights) - expected).norm() < max(1e-7, EXACT[name]) * expected.norm()


@pytest.mark.parametrize("name", FAMILIES)
def test_shared_prefixes_give_the_hidden_states_and_gradients_of_separate_sequences(name):
    first, second, third, fourth = segments = tokens([20, 6, 9, 3])
    # one sequence, two that leave it after 7 and 15 tokens, one that leaves the second of these after 18
    sequences = [first, torch.cat([first[:7], second]), torch.cat([first[:15], third])]
    sequences.append(torch.cat([sequences[2][:18], fourth]))
    weights = torch.randn(38, 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    separate = build(FAMILIES[name])
    apart = [separate.base_model(s[None]).last_hidden_state[0] for s in sequences]
    reference = torch.cat([apart[0], apart[1][7:], apart[2][15:], apart[3][18:]])
    packed_model = build(FAMILIES[name])
    made = layout([20, 6, 9, 3], prompts=[-1, 0, 0, 2], continued=[0, 7, 15, 18])
    packed = packed_hidden(packed_model, torch.cat(segments), made)
    torch.testing.assert_close(packed, reference, rtol=0, atol=EXACT[name])
    expected = gradient(separate, reference, weights)
    assert (gradient(packed_model, packed, weights) - expected).norm() < max(1e-7, EXACT[name]) * expected.norm()


def test_each_segment_attends_to_the_keys_of_its_prompt_and_its_own():
    made = layout([2, 3, 1, 2], prompts=[-1, 0, 0, -1])
    assert made.keys is not None
    assert made.keys.tolist() == [0, 1, 0, 1, 2, 3, 4, 0, 1, 5, 6, 7]
    assert made.cumulative_queries.tolist() == [0, 2, 5, 6, 8]
    assert made.cumulative_keys.tolist() == [0, 2, 7, 10, 12]
    assert (made.longest_query, made.longest_key) == (3, 5)


def test_without_a_layout_the_model_heeds_a_mask_as_before():
    model = build(FAMILIES["qwen2"])
    ids = torch.stack(tokens([12, 12]))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    before = model(ids, attention_mask=mask).logits
    packed_hidden(model, ids[0], layout([12]))
    after = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_without_a_layout_a_soft_cap_is_applied():
    model = build(FAMILIES["gemma2, soft-capped scores and a window of 7"])
    ids = torch.stack(tokens([12, 12]))
    eager = model(ids).logits
    model.set_attn_implementation("dapo_packed")
    torch.testing.assert_close(model(ids).logits, eager, rtol=0, atol=5e-6)


def test_attention_sinks_are_refused():
    sizes = SIZES | {"num_hidden_layers": 1, "num_local_experts": 2, "num_experts_per_tok": 1}
    model = build(GptOssConfig(**sizes, num_key_value_heads=2), torch.float32)
    with pytest.raises(ValueError, match="attention sinks"):
        packed_hidden(model, torch.arange(4), layout([4]))


def test_the_attention_is_not_saved_with_the_model(tmp_path):
    model = build(FAMILIES["qwen2"], torch.float32)
    packed_hidden(model, torch.arange(4), layout([4]))
    model.save_pretrained(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"
