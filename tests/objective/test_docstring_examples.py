"""The examples in the docstrings run."""

import doctest
from types import ModuleType

import pytest

from dapo_lit.objective import advantages, covariance, losses, returns, shaping, tokens


@pytest.mark.parametrize("module", [advantages, covariance, losses, returns, shaping, tokens])
def test_the_examples_in_the_docstrings_are_true(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
