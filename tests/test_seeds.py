"""Noise depends on the name of the sample and the position and on nothing else; every stream is one of seeds.py."""

import dataclasses
import hashlib
import random
import re
from pathlib import Path

import numpy as np
import pytest

import dapo_lit.seeds
from dapo_lit.engines.protocol import NO_TOKENS, PartialSample, SampleKey, SampleRequest, Sampling
from dapo_lit.engines.vllm_engine.stream import sampling_params
from dapo_lit.seeds import (
    adapter_seed,
    loss_seed,
    minibatch_seed,
    named_generator,
    pretraining_seed,
    request_seed,
    row_key,
    stream_seed,
    uniforms,
)  # fmt: skip

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


def test_seeds_are_the_same_in_every_version_and_on_every_machine():
    """Runs are compared by their seeds across versions, and base policies are kept in the repository."""
    assert stream_seed(3, 0) == 3
    assert stream_seed(3, 1) == 36337595835542497
    assert minibatch_seed(0, 5, 1) == 4530720246725517748
    assert loss_seed(0, 5, 1, [2, 3]) == 8790839283906041465
    assert adapter_seed(0, "q_proj.lora_A.default.weight") == 3897114504342995469
    assert pretraining_seed(2, 3) == 2003
    assert named_generator("parity", "demonstrations", 7).random() == random.Random("parity/demonstrations/7").random()


def test_the_counters_of_two_streams_never_give_the_same_seed():
    assert (
        len({loss_seed(0, 1, 2, [3]), loss_seed(0, 1, 2, [3, 4]), minibatch_seed(0, 1, 2), minibatch_seed(0, 2, 1)})
        == 4
    )


MAKES_A_GENERATOR = re.compile(r"manual_seed\(|default_rng\(|RandomState\(|[^_.]Random\(|random\.seed\(")


def test_every_generator_is_seeded_from_the_one_table():
    """A draw that seeds.py does not list is a stream that nobody knows of."""
    seeds = Path(dapo_lit.seeds.__file__)
    makers = {file for file in seeds.parent.rglob("*.py") if MAKES_A_GENERATOR.search(file.read_text())} - {seeds}
    assert makers
    for file in makers:
        where = str(file.relative_to(seeds.parent))
        assert where in seeds.read_text() or f"({file.parent.relative_to(seeds.parent)}/)" in seeds.read_text(), where
