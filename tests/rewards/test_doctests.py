import doctest
import importlib
import pkgutil

import pytest

import dapo_lit.answers
import dapo_lit.rewards

MODULES = [
    module.name
    for room in (dapo_lit.answers, dapo_lit.rewards)
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_hold(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0
