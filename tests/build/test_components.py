"""What a run is made of has room for its longest texts."""

import pytest

from dapo_lit.build.components import RunComponents
from dapo_lit.config import ConfigError


def test_the_engine_has_room_for_the_longest_prompt_and_response_of_every_benchmark(compose):
    parts = RunComponents(compose())
    assert parts.longest_tokens == 32  # four_sums: 12 of the prompt, 20 of the response
    parts = RunComponents(compose("evaluation.benchmarks=[chain_sum_heldout]", "policy=tiny"))
    [benchmark] = parts.benchmarks
    longest = max(len(prompt.ids) for prompt in benchmark.prompts)
    assert parts.longest_tokens == longest + benchmark.sampling.max_response_tokens > 32


def test_the_held_out_problems_may_have_a_longer_limit_than_training(compose):
    assert RunComponents(compose("evaluation.max_response_tokens=50")).longest_tokens == 62
    assert RunComponents(compose("evaluation.max_response_tokens=5")).longest_tokens == 32
    with pytest.raises(ConfigError, match=r"evaluation.max_response_tokens"):
        _ = RunComponents(compose("evaluation.max_response_tokens=5000")).policy
