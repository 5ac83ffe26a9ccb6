"""An arm's name says all that is set, so it can be read back; a mistyped one is told with the nearest."""

import pytest

from dapo_lit.study.arm_names import find_arm, read_arm
from dapo_lit.study.designs import DESIGNS, design


@pytest.mark.parametrize("name", DESIGNS)
def test_every_arm_of_every_design_is_read_back_from_its_name(name: str) -> None:
    for arm in design(name).arms:
        assert read_arm(arm.name) == arm


def test_a_learning_rate_in_a_name_is_the_learning_rate_that_is_set() -> None:
    arms = design("lr_sensitivity", lr=2e-4).arms
    assert {arm.settings.get("algorithm.optimizer.lr") for arm in arms} == {None, 6.66667e-05, 0.0006}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grpo", "starts with dapo or naive_grpo"),
        ("dapo-clip_highr", "did you mean clip_higher?"),
        ("dapo@clip.high", "has no value"),
        ("dapo+clip_higher", "this arm's one name is 'dapo'"),
        ("naive_grpo+clip_higher+overlong_filtering", "'naive_grpo+overlong_filtering+clip_higher'"),
    ],
)
def test_what_is_no_name_of_an_arm_is_refused_with_how_it_is_written(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_arm(name)
    assert message in str(caught.value)


def test_an_arm_that_a_study_lacks_is_told_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"did you mean dapo-clip_higher\?"):
        find_arm(design("leave_one_out"), "dapo-clip_high")
