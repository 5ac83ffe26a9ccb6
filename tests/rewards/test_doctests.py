import doctest
import importlib
import pkgutil

import pytest

import dapo_lit.rewards

MODULES = [
    module.name
    for module in pkgutil.walk_packages(dapo_lit.rewards.__path__, "dapo_lit.rewards.")
    if not module.name.endswith("model_judge")
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_hold(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0
