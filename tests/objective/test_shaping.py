"""Overlong shaping at every boundary of Eq. 13."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_lit.objective.shaping import soft_overlong_punishment


def equation_13(length: int, l_max: int, l_cache: int) -> float:
    if length <= l_max - l_cache:
        return 0.0
    if length <= l_max:
        return ((l_max - l_cache) - length) / l_cache
    return -1.0


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 50_000))
def test_it_equals_the_formula_at_and_around_every_boundary(data: st.DataObject, l_max: int) -> None:
    l_cache = data.draw(st.integers(0, l_max - 1))
    factor = data.draw(st.floats(0, 5))
    boundaries = (0, l_max - l_cache, l_max - l_cache // 2, l_max)
    lengths = sorted({max(0, boundary + offset) for boundary in boundaries for offset in (-1, 0, 1)})
    result = soft_overlong_punishment(
        torch.tensor(lengths), max_response_tokens=l_max, cache_tokens=l_cache, factor=factor
    ).tolist()
    assert result == pytest.approx([factor * equation_13(n, l_max, l_cache) for n in lengths], rel=1e-12, abs=1e-15)
    assert all(shorter >= longer for shorter, longer in itertools.pairwise(result))
