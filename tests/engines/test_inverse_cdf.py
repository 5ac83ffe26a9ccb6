"""One uniform chooses one token, and the log-prob is that of the distribution it was drawn from."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dapo_lit.engines.protocol import Sampling
from dapo_lit.engines.torch_engine.rows import draw

QUARTERS = torch.tensor([0.25, 0.0, 0.25, 0.5, 0.0]).log()  # ids 1 and 4 are impossible
LEAST, MOST = 2.0**-53, 1 - 2.0**-53


def draw_at(logits: torch.Tensor, uniforms: list[float], **settings: float) -> tuple[list[int], list[float]]:
    """The token and the probability for each uniform."""
    sampling = Sampling(max_response_tokens=1, **settings)
    rows = logits.expand(len(uniforms), -1)
    tokens, logprobs = draw(rows, torch.tensor(uniforms, dtype=torch.float64), sampling)
    return tokens.tolist(), logprobs.exp().tolist()


def test_a_uniform_chooses_the_token_whose_share_of_the_cdf_it_falls_into():
    # The CDF is 0.25, 0.25, 0.5, 1, 1.
    tokens, probs = draw_at(QUARTERS, [LEAST, 0.24, 0.26, 0.49, 0.51, MOST])
    assert tokens == [0, 0, 2, 2, 3, 3]
    assert probs == pytest.approx([0.25, 0.25, 0.25, 0.25, 0.5, 0.5])


@given(st.integers(0, 2**32), st.integers(2, 300), st.floats(LEAST, MOST))
def test_an_impossible_token_is_never_drawn(seed, vocab, uniform):
    generator = torch.Generator().manual_seed(seed)
    logits = 30 * torch.randn(vocab, generator=generator)
    logits[torch.rand(vocab, generator=generator) < 0.5] = -torch.inf
    logits[seed % vocab] = 0.0
    for settings in ({}, {"top_p": 0.9}):
        tokens, probs = draw_at(logits, [LEAST, uniform, MOST], **settings)
        assert min(probs) > 0
        assert logits[tokens].min() > -torch.inf


@pytest.mark.parametrize(("top_p", "kept"), [(0.39, [1]), (0.41, [1, 3]), (0.69, [1, 3]), (0.71, [1, 2, 3])])
def test_top_p_keeps_the_fewest_tokens_that_reach_it_and_renormalises(top_p, kept):
    probs = torch.tensor([0.1, 0.4, 0.2, 0.3])
    tokens, got = draw_at(probs.log(), [(i + 0.5) / 200 for i in range(200)], top_p=top_p)
    assert sorted(set(tokens)) == kept
    mass = probs[kept].sum().item()
    assert got == pytest.approx([probs[token].item() / mass for token in tokens])


def test_rows_with_nuclei_of_different_sizes_are_renormalised_apart():
    rows = torch.stack([torch.tensor([5.0, 0.0, 0.0, 0.0]), torch.tensor([0.1, 0.4, 0.2, 0.3]).log()])
    uniforms = torch.tensor([0.5, 0.9], dtype=torch.float64)
    tokens, logprobs = draw(rows, uniforms, Sampling(max_response_tokens=1, top_p=0.6))
    assert tokens.tolist() == [0, 3]
    assert logprobs.exp().tolist() == pytest.approx([1.0, 3 / 7])


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"top_p": 0.8}])
def test_a_nan_shows_in_the_log_prob(settings):
    _, (prob,) = draw_at(torch.tensor([0.0, math.nan, 1.0, 2.0, 3.0]), [0.5], **settings)
    assert math.isnan(prob)
