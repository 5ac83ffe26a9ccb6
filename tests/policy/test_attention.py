"""Packed attention gives each sequence the hidden states and gradients that it has in a row of its own."""

from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from dapo_lit.policy.attention import Layout, layout, packed_hidden

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 128, "tie_word_embeddings": True, "head_dim": 8,
}  # fmt: skip
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


@dataclass
class Packing:
    """Segments of a packed row, and the sequences that they are parts of."""

    segments: list[Tensor]
    layout: Layout
    sequences: list[Tensor]
    own: list[int]
    """Where the segment of each sequence begins; what is before belongs to the segments that it continues."""

    def states_apart(self, model: PreTrainedModel) -> Tensor:
        """Hidden states of the segments, each sequence computed by itself."""
        states = [model.base_model(s[None]).last_hidden_state[0] for s in self.sequences]
        return torch.cat([hidden[begin:] for hidden, begin in zip(states, self.own, strict=True)])


def apart() -> Packing:
    sequences = tokens(LENGTHS)
    return Packing(sequences, layout(LENGTHS), sequences, [0] * len(LENGTHS))


def shared_prompts() -> Packing:
    """Two prompts: the first with three responses, the second with one, and a sequence of its own."""
    prompt, other, *responses = tokens([11, 4, 6, 1, 20, 9, 15])
    segments = [prompt, *responses[:3], other, responses[3], responses[4]]
    sequences = [prompt, *(torch.cat([prompt, r]) for r in responses[:3]), other, torch.cat([other, responses[3]])]
    made = layout([len(s) for s in segments], [-1, 0, 0, 0, -1, 4, -1])
    return Packing(segments, made, [*sequences, responses[4]], [0, 11, 11, 11, 0, 4, 0])


def shared_prefixes(branches: bool = False) -> Packing:
    """A sequence, two that leave it after 7 and 15 tokens, one that leaves the second of these after 18."""
    first, second, third, fourth = segments = tokens([20, 6, 9, 3])
    sequences = [first, torch.cat([first[:7], second]), torch.cat([first[:15], third])]
    sequences.append(torch.cat([sequences[2][:18], fourth]))
    made = layout([20, 6, 9, 3], prompts=[-1, 0, 0, 2], continued=[0, 7, 15, 18], branches=branches)
    return Packing(segments, made, sequences, [0, 7, 15, 18])


def branches() -> Packing:
    case = shared_prefixes(branches=True)
    # of 6, 9 and 3 tokens in sequences of 13, 24 and 21
    assert [(b.num_segments, b.queries, b.keys) for b in case.layout.branches] == [(3, 9, 24)]
    return case


def many_branches() -> Packing:
    """Fifty sequences that leave the first after one to fifty tokens, in more than one batch; one leaves a branch."""
    own = [1 + 37 * i % 50 for i in range(50)]
    segments = tokens([60, *own, 9])
    leaves = [*range(1, 51)]
    sequences = [segments[0], *(torch.cat([segments[0][:n], s]) for n, s in zip(leaves, segments[1:-1], strict=True))]
    parents, continued = [-1, *[0] * 50, 7], [0, *leaves, 7]
    sequences.append(torch.cat([sequences[7][:7], segments[-1]]))
    made = layout([len(s) for s in segments], parents, continued, branches=True)
    assert len(made.branches) > 1
    assert len(made.buckets) > 1  # and some that have most of their sequence to themselves
    return Packing(segments, made, sequences, [0, *leaves, 7])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("packing", [apart, shared_prompts, shared_prefixes, branches, many_branches])
def test_hidden_states_and_gradients_are_those_of_separate_sequences(name, packing):
    case, separate, model = packing(), build(FAMILIES[name]), build(FAMILIES[name])
    reference = case.states_apart(separate)
    weights = torch.randn(len(reference), 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    packed = packed_hidden(model, torch.cat(case.segments), case.layout)
    torch.testing.assert_close(packed, reference, rtol=0, atol=EXACT[name])
    expected = gradient(separate, reference, weights)
    # Transformers' norms round to float32: there the gradients of sequences that share tokens meet in another order.
    allowed = EXACT[name] if packing is apart else max(1e-7, EXACT[name])
    assert (gradient(model, packed, weights) - expected).norm() < allowed * expected.norm()


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


def test_without_a_layout_the_model_heeds_a_mask_as_before():
    model = build(FAMILIES["qwen2"])
    ids = torch.stack(tokens([12, 12]))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    before = model(ids, attention_mask=mask).logits
    packed_hidden(model, ids[0], layout([12]))
    after = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(after, before, rtol=0, atol=0)
