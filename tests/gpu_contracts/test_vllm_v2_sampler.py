"""The sampler of vLLM's newer model runner (V2), off here: its draws follow from seed, position and token, and its
log-probs are those of the distribution that it draws from. Its kernels run under Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

pytest.importorskip("vllm", reason="make test-gpu-contracts runs these")
pytest.importorskip("triton")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    file = tmp_path_factory.mktemp("v2") / "drawn.npz"
    script = Path(__file__).with_name("v2_sampler.py")
    environment = os.environ | {"TRITON_INTERPRET": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    subprocess.run([sys.executable, script, file], env=environment, check=True)
    return dict(np.load(file))


def uniforms(seeds: Any, positions: Any, tokens: Any) -> Any:
    """MurmurHash3 of both halves of the seed, of position and token, as the middle of one of 2^32 parts of (0, 1)."""
    words = [seeds & 0xFFFFFFFF, seeds >> 32, positions, tokens]
    state = np.zeros(np.broadcast_shapes(*(word.shape for word in words)), np.uint32)
    for word in (word.astype(np.uint32) for word in words):
        state = state ^ rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        state = rotated(state, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    state = state ^ np.uint32(16)  # bytes
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> np.uint32(shift)) * np.uint32(factor)
    return (state ^ state >> np.uint32(16)) / 2.0**32 + 2.0**-33


def rotated(word: Any, bits: int) -> Any:
    return word << np.uint32(bits) | word >> np.uint32(32 - bits)


def gumbel(uniform: Any) -> Any:
    return -np.log(-np.log1p(-uniform.astype(np.float64)))


def test_the_noise_of_a_token_follows_from_its_seed_and_place_and_is_that_of_no_other(drawn):
    expected = uniforms(drawn["lane_seeds"], drawn["lane_positions"], drawn["lane_tokens"])
    assert np.array_equal(drawn["lane_uniforms"], expected.astype(np.float32))
    assert len(np.unique(expected)) > 0.999 * len(expected)


def test_every_row_of_a_batch_takes_the_token_that_its_own_noise_wins(drawn):
    seeds, positions = drawn["seeds"][:, None], drawn["positions"][:, None]
    noise = gumbel(uniforms(seeds, positions, np.arange(drawn["logits"].shape[1])[None]))
    scores = drawn["logits"] / drawn["temperatures"][:, None] + noise
    assert np.array_equal(drawn["tokens"], scores.argmax(1))
    assert (drawn["tokens"] >= 1024).any()  # of the second block, too


def test_logprobs_are_those_of_the_distribution_at_its_temperature(drawn):
    scaled = torch.from_numpy(drawn["logits"]).double() / torch.from_numpy(drawn["temperatures"])[:, None]
    expected = scaled.log_softmax(-1).gather(1, torch.from_numpy(drawn["tokens"])[:, None])[:, 0]
    assert np.allclose(drawn["logprobs"], expected.numpy(), rtol=0, atol=2e-6)


def test_the_noise_of_neighbouring_samples_and_positions_draws_a_distribution_as_it_is(drawn):
    """8,192 draws, each of 64 tokens, of 64 samples at 128 places; over all draws and over pairs of neighbours."""
    noise = gumbel(drawn["lane_uniforms"]).reshape(64, -1, 64)
    logits = np.linspace(0, 3, 64)
    expected = np.exp(logits) / np.exp(logits).sum()
    tokens = (noise + logits).argmax(-1)
    assert chisquare(np.bincount(tokens.ravel(), minlength=64), tokens.size * expected).pvalue > 1e-3
    low = tokens < 48
    share = expected[:48].sum()
    for first, second in ((low[:, :-1], low[:, 1:]), (low[:-1], low[1:])):
        pairs = np.bincount((2 * first + second).ravel(), minlength=4)
        wanted = np.outer([1 - share, share], [1 - share, share]).ravel() * first.size
        assert chisquare(pairs, wanted).pvalue > 1e-3
