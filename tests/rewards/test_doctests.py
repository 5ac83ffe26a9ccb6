import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import dapo_lit.rewards
import math_answers

MODULES = ["math_answers"] + [
    module.name
    for room in (math_answers, dapo_lit.rewards)
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_hold(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_the_example_in_the_readme_of_the_answers_holds():
    readme = Path(math_answers.__file__).parent / "README.md"
    result = doctest.testfile(str(readme), module_relative=False)
    assert result.failed == 0
    assert result.attempted > 3
