"""An arm's name says all that is set, so it can be read back; a mistyped one is told with the nearest."""

import pytest
from shipped import DESIGNS, design

from dapo_lit.study.designs import in_order, ladder, read_arm, read_arms


@pytest.mark.parametrize("name", DESIGNS)
def test_every_arm_of_every_design_is_read_back_from_its_name(name: str) -> None:
    for arm in design(name).arms:
        assert read_arm(arm.name) == arm


def test_words_stand_for_several_arms_and_no_arm_is_named_twice() -> None:
    assert [arm.name for arm in read_arms(["dapo", "ladder", "dapo@clip.high=0.5"])] == [
        "dapo",
        *(arm.name for arm in ladder()),
        "dapo@clip.high=0.5",
    ]


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
        ("dapo+clip_higher", "this arm's one name is 'dapo'"),
        ("naive_grpo+clip_higher+overlong_filtering", "'naive_grpo+overlong_filtering+clip_higher'"),
    ],
)
def test_what_is_no_name_of_an_arm_is_refused_with_how_it_is_written(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_arm(name)
    assert message in str(caught.value)
