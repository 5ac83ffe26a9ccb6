"""Arms: names that say exactly what differs and are read back, and designs that separate what they claim to."""

import itertools

import numpy as np
import pytest
from shipped import DESIGNS, design

from ablations.designs import half_fraction, in_order, ladder, read_arm
from ablations.techniques import LADDER


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


@pytest.mark.parametrize("name", DESIGNS)
def test_every_arm_of_every_design_is_read_back_from_its_name(name: str) -> None:
    for arm in design(name).arms:
        assert read_arm(arm.name) == arm


def test_arms_stand_in_the_order_of_the_plan_before_that_of_the_usual_studies() -> None:
    names = ["zzz", "dapo", "naive_grpo", "dapo@clip.high=0.5", "dapo-clip_higher"]
    assert in_order(names) == ["naive_grpo", "dapo", "dapo-clip_higher", "dapo@clip.high=0.5", "zzz"]
    assert in_order(names, ["dapo@clip.high=0.5", "dapo-clip_higher"])[:2] == ["dapo@clip.high=0.5", "dapo-clip_higher"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grpo", "starts with dapo or naive_grpo"),
        ("dapo-clip_highr", "did you mean clip_higher?"),
        ("dapo@clip.high", "has no value"),
        ("dapo@clip.high=0.3@clip.high=0.4", "sets algorithm.clip.high twice"),
        ("dapo+clip_higher", "this arm's one name is 'dapo'"),
        ("naive_grpo+clip_higher+overlong_filtering", "'naive_grpo+overlong_filtering+clip_higher'"),
    ],
)
def test_what_is_no_name_of_an_arm_is_refused_with_how_it_is_written(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_arm(name)
    assert message in str(caught.value)
