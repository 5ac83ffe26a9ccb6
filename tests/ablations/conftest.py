"""ablations is a library of its own: what other tests have torch for is left out here, so that these need none."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """No threads of torch to limit."""


@pytest.fixture(autouse=True)
def as_committed() -> None:
    """No study to launch."""
