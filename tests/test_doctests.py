"""Every example in a docstring, and in the page of the answers, prints what it says."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import math_answers

ROOT = Path(__file__).parents[1]
PACKAGES = ("dapo_lit", "dapo_lit_tools", "ablations", "math_answers")
FILES = [file for room in PACKAGES for file in sorted((ROOT / room).rglob("*.py"))]
MODULES = [".".join(f.relative_to(ROOT).with_suffix("").parts) for f in FILES if ">>>" in f.read_text()]


@pytest.mark.parametrize("module", [name.removesuffix(".__init__") for name in MODULES])
def test_the_examples_of_a_module_hold(module):
    result = doctest.testmod(import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_examples_of_the_answers_page_hold():
    result = doctest.testfile(str(Path(math_answers.__file__).with_name("README.md")), module_relative=False)
    assert result.failed == 0
    assert result.attempted > 3
