"""Arms: names that say exactly what differs, and designs that can separate what they claim to separate."""

import itertools

import numpy as np
from shipped import design

from dapo_lit.study.designs import Arm, half_fraction, ladder
from dapo_lit.techniques import DAPO, LADDER, NAIVE_GRPO


def test_references_and_single_differences_are_named_as_documented() -> None:
    assert Arm(DAPO).name == "dapo"
    assert Arm(NAIVE_GRPO).name == "naive_grpo"
    assert Arm(DAPO - {"clip_higher"}).name == "dapo-clip_higher"
    assert Arm(frozenset(LADDER)).name == "dapo+overlong_filtering"
    # as far from naive_grpo: the tie goes to dapo
    assert Arm(DAPO - {"clip_higher", "dynamic_sampling"}).name == "dapo-clip_higher-dynamic_sampling"


def test_table1_is_cumulative_as_printed_and_adds_dapo() -> None:
    arms = design("table1").arms
    assert [sum(arm.techniques.values()) for arm in arms] == [0, 1, 2, 3, 4, 5, 4]
    assert [b.on - a.on for a, b in itertools.pairwise(ladder())] == [{technique} for technique in LADDER]
    assert arms[-1].name == "dapo"
    assert arms[-2].name == "dapo+overlong_filtering"


def test_the_half_fraction_separates_main_effects_and_pairs_from_each_other() -> None:
    """Resolution V: the 1 + 5 + 10 columns of mean, main effects and pairs are orthogonal in 16 arms."""
    signs = np.array([[1 if arm.techniques[t] else -1 for t in LADDER] for arm in half_fraction(LADDER)])
    pairs = [signs[:, i] * signs[:, j] for i, j in itertools.combinations(range(5), 2)]
    columns = np.column_stack([np.ones(16), signs, *pairs])
    assert columns.shape == (16, 16)
    np.testing.assert_array_equal(columns.T @ columns, 16 * np.eye(16))
    assert {"dapo", "naive_grpo"} <= set(design("factorial_half").names)
