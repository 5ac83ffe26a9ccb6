"""Work spread over ranks and micro-batches."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

from dapo_lit.step.balance import balance, balance_frac, cost_of, first_fit

TOKENS = st.lists(st.integers(1, 50), min_size=1, max_size=40)


@given(TOKENS, st.integers(1, 9))
def test_every_item_goes_to_one_rank_and_none_has_more_than_four_thirds_of_the_best(costs, ranks):
    shares = balance(costs, ranks)
    assert len(shares) == ranks
    assert sorted(i for share in shares for i in share) == list(range(len(costs)))
    largest = max(sum(costs[i] for i in share) for share in shares)
    # max(mean, largest item) bounds the optimum from below; Graham's list bound is mean + (1 - 1/m) * largest item
    assert largest <= sum(costs) / ranks + (1 - 1 / ranks) * max(costs) + 1e-9


@pytest.mark.parametrize("ranks", [2, 3, 8, 16, 32])
@pytest.mark.parametrize("seed", range(5))
def test_a_mini_batch_of_512_long_tailed_sequences_is_balanced_above_98_percent(ranks, seed):
    draw = random.Random(seed)
    lengths = [min(20_480, int(draw.lognormvariate(7.5, 0.8)) + 1) for _ in range(512)]
    heads = {"num_attention_heads": 40, "num_key_value_heads": 8}
    qwen2_5_32b = Qwen2Config(num_hidden_layers=64, hidden_size=5120, intermediate_size=27648, **heads)
    cost = cost_of(qwen2_5_32b)
    costs = [cost(n) for n in lengths]
    assert balance_frac(costs, balance(costs, ranks)) > 0.98
    in_order = [list(range(r, 512, ranks)) for r in range(ranks)]
    assert balance_frac(costs, in_order) < balance_frac(costs, balance(costs, ranks))


@given(TOKENS, st.integers(1, 120))
def test_bins_hold_every_item_once_within_the_budget(tokens, budget):
    bins = first_fit(tokens, budget)
    assert sorted(i for b in bins for i in b) == list(range(len(tokens)))
    assert all(b for b in bins)
    for chosen in bins:
        assert len(chosen) == 1 or sum(tokens[i] for i in chosen) <= budget
    if max(tokens) <= budget:
        # first fit leaves at most one bin half empty
        assert len(bins) <= 2 * -(-sum(tokens) // budget)


def test_the_linear_cost_is_the_number_of_weights_outside_embedding_and_norms():
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(**sizes, vocab_size=9, num_hidden_layers=3)
    model = AutoModelForCausalLM.from_config(config)
    weights = sum(p.numel() for n, p in model.named_parameters() if "layers" in n and p.ndim == 2)
    # causal attention of s tokens: s^2 / 2 pairs, two products of 6 for each, 4 heads, 3 layers
    assert [cost_of(config)(s) for s in (1, 10)] == [weights + 72, 10 * weights + 100 * 72]


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "opt"])
def test_a_family_with_other_names_has_the_cost_of_its_sizes(family):
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    wide = {"gpt2": "n_inner", "gpt_neox": "intermediate_size", "opt": "ffn_dim"}[family]
    # Four projections of 8 x 8 and three matrices of 8 x 20, in two layers.
    assert cost_of(AutoConfig.for_model(family, **sizes, **{wide: 20}))(1) == 2 * (4 * 64 + 3 * 160) + 16
