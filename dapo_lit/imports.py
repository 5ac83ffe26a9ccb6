"""Imports objects that a config names by a dotted path, such as a reward function.

An import runs code, so a path needs the user's own word: a command line, a config that a command line chose, or a call
in Python. The config in a run folder is data (SECURITY.md): while one is in use, `allow_imports` lists the paths that
the user gave, and all others are refused.
"""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from dapo_lit.errors import UserError

_given: ContextVar[Container[str] | None] = ContextVar("given", default=None)


class UntrustedError(UserError):
    """A config from a folder names code, and the user did not."""


@contextmanager
def allow_imports(given: Container[str] | None) -> Iterator[None]:
    """Inside the block only these dotted paths are imported; None: all."""
    token = _given.set(given)
    try:
        yield
    finally:
        _given.reset(token)


CODE = ("reward.function", "algorithm.loss", "turns.environment")
"""Keys whose value names code if there is a dot in it."""


def named_code(key: str, value: object) -> str | None:
    """The dotted path of the code that a setting names, which needs the user's own word (SECURITY.md); None: no code.

    >>> named_code("reward.weights.my_rewards.short", 0.5), named_code("algorithm.loss", "clip")
    ('my_rewards.short', None)
    """
    weighed = key.removeprefix("reward.weights.")
    path = weighed if weighed != key else str(value) if key in CODE else ""
    return path if "." in path else None


def named_in(settings: Mapping[str, Any]) -> set[str]:
    """The words of settings that a user typed, code among them: texts, and the keys of mappings like reward.weights."""
    return {str(word) for value in settings.values() for word in (value if isinstance(value, Mapping) else [value])}


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
