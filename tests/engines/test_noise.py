"""Noise depends on the name of the sample and the position, and on nothing else."""

import dataclasses
import hashlib

import numpy as np
import pytest

from dapo_lit.engines.noise import request_seed, row_key, uniforms
from dapo_lit.engines.protocol import NO_TOKENS, PartialSample, SampleKey, SampleRequest, Sampling
from dapo_lit.engines.vllm_engine.stream import sampling_params

KEY = SampleKey(step=3, problem_id="gsm8k/17", attempt=0, sample_index=5)


def splitmix64(state: int) -> int:
    """Vigna's reference implementation, in Python's unbounded integers."""
    mask = 2**64 - 1
    z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)


def test_a_position_is_the_output_of_splitmix64_at_that_counter():
    key = int.from_bytes(hashlib.blake2b(b"7|3|0|5|gsm8k/17", digest_size=8).digest(), "little")
    assert row_key(7, KEY) == key
    expected = [
        ((splitmix64((key + (i + 1) * 0x9E3779B97F4A7C15) % 2**64) >> 12) + 0.5) / 2**52 for i in (0, 1, 2, 20_480)
    ]
    got = uniforms(np.array([key], np.uint64), np.array([0, 1, 2, 20_480], np.int64))
    assert got.tolist() == expected


@pytest.mark.parametrize("change", [{"step": 4}, {"problem_id": "gsm8k/18"}, {"attempt": 1}, {"sample_index": 6}])
def test_every_part_of_the_name_changes_the_noise(change):
    assert row_key(0, dataclasses.replace(KEY, **change)) != row_key(0, KEY)


def test_a_response_that_vllm_continues_draws_other_noise_than_its_first_tokens_did():
    begun = PartialSample([5, 6], [-1.0, -1.0], ((0, 2),))
    requests = [SampleRequest(KEY, (4, 5), partial) for partial in (NO_TOKENS, begun)]
    seeds = [sampling_params(request, Sampling(8, seed=3), [1])["seed"] for request in requests]
    assert seeds == [request_seed(3, KEY, 0), request_seed(3, KEY, 2)]
    assert seeds[0] != seeds[1]
    assert all(0 <= seed < 2**63 for seed in seeds)
