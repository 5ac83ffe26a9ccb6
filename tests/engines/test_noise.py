"""Noise depends on the name of the sample and the position, and on nothing else."""

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_lit.engines.noise import row_key, uniforms
from dapo_lit.engines.samples import SampleKey

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


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6))
def test_uniforms_lie_strictly_between_0_and_1(key, position):
    value = uniforms(np.array([key], np.uint64), np.array([position], np.int64))[0]
    assert 0.0 < value < 1.0


def test_uniforms_are_uniform_over_rows_and_over_positions():
    keys = np.array([row_key(0, dataclasses.replace(KEY, sample_index=i)) for i in range(200)], np.uint64)
    values = uniforms(keys[:, None], np.arange(500, dtype=np.int64))
    # 100 cells of 1,000 expected: chi-square with 99 degrees of freedom exceeds 149.4 once in a thousand.
    counts = np.histogram(values, bins=100, range=(0, 1))[0]
    assert ((counts - 1000.0) ** 2 / 1000.0).sum() < 149.4
    # Means of 500 and of 200 uniforms: five standard errors.
    assert abs(values.mean(1) - 0.5).max() < 5 * (1 / 12 / 500) ** 0.5
    assert abs(values.mean(0) - 0.5).max() < 5 * (1 / 12 / 200) ** 0.5
