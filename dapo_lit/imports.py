"""Imports objects that a config names by a dotted path, such as a reward function.

An import runs code, so a path needs the user's own word: a command line, a config that a command line chose, or a call
in Python. The config in a run folder is data (SECURITY.md): while one is in use, `only` lists the paths that the user
gave, and all others are refused.
"""

from collections.abc import Container, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from dapo_lit.errors import UserError

_given: ContextVar[Container[str] | None] = ContextVar("given", default=None)


class UntrustedError(UserError):
    """A config from a folder names code, and the user did not."""


@contextmanager
def only(given: Container[str] | None) -> Iterator[None]:
    """Inside the block only these dotted paths are imported; None: all."""
    token = _given.set(given)
    try:
        yield
    finally:
        _given.reset(token)


def names_code(key: str, value: object) -> bool:
    """True if a setting names code, which needs the user's own word (SECURITY.md)."""
    if key.startswith("reward.weights."):
        return "." in key.removeprefix("reward.weights.")
    return key in ("reward.function", "algorithm.loss") and "." in str(value)


def check_given(path: str) -> None:
    """Raises UntrustedError for a path that the user did not give."""
    given = _given.get()
    if given is not None and path not in given:
        raise UntrustedError(
            f"the run's config.yaml names code, {path}, and a run folder is data: read that code, and add trust=true "
            "to run it"
        )


def named_object(path: str) -> Any:
    """The object at `package.module.name`.

    Raises UntrustedError: the user did not give the path.
    Raises ImportError, AttributeError: there is no such object.
    """
    check_given(path)
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)
