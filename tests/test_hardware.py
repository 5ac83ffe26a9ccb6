"""The cards of conf/hardware: each with its source, and each number of one can be changed alone."""

import pytest

from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import config_folder, parse_as
from dapo_lit_tools.planning.hardware import GPUS, Hardware, PlanConfig


def hardware(*overrides: str) -> Hardware:
    return parse_as(resolved(composed_tree(overrides, "plan")), PlanConfig).hardware


@pytest.mark.parametrize("name", sorted(GPUS))
def test_a_card_says_where_its_peaks_come_from_and_a_plan_takes_it_by_name(name):
    assert (config_folder() / "hardware" / f"{name}.yaml").read_text(encoding="utf-8").startswith("# Source: ")
    assert hardware(f"hardware={name}") == GPUS[name]


def test_one_number_of_a_card_can_be_changed_alone():
    assert hardware("hardware=h100", "hardware.memory_gb=48") == GPUS["h100"].model_copy(update={"memory_gb": 48.0})
    assert hardware("hardware.tflops=500") == GPUS["h100"].model_copy(update={"tflops": 500.0})


def test_the_cards_that_people_have_are_there():
    assert {"rtx_4090", "rtx_5090", "l40s", "a6000", "l4", "a10g", "b200", "mi300x", "h100", "a100"} <= set(GPUS)
