"""A group of identical samples is an error unless the answer is nearly certain."""

import numpy as np
import pytest

from dapo_lit.engines.protocol import Sample, SampleKey
from dapo_lit.rollout.records import IdenticalSamplesError, check_independent


def group(ids: list[list[int]], logprob: float) -> list[Sample]:
    return [
        Sample(SampleKey(3, "p7", 0, index), np.array(one), np.full(len(one), logprob), finished=True, policy_version=0)
        for index, one in enumerate(ids)
    ]


def test_samples_that_are_equal_and_not_nearly_certain_are_refused():
    with pytest.raises(IdenticalSamplesError, match=r"p7 .*step 3 .*-72"):
        check_independent(group([[5] * 12] * 4, -2.0))  # 3 x 12 x 2
    check_independent(group([[5] * 12] * 3 + [[5] * 11 + [6]], -2.0))  # one differs in one token
    check_independent(group([[5] * 12] * 4, -0.01))  # a nearly certain answer
    check_independent(group([[5] * 12], -9.0))  # a group of one
