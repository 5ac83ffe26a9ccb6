"""Imports objects that a config names by a dotted path, such as a reward function.

An import runs code, so a path needs the user's own word: a command line, a config that a command line chose, or a call
in Python. The config in a run folder is data (SECURITY.md): while one is in use, `allow_imports` lists the paths that
the user gave, and all others are refused.
"""

import sys
import sysconfig
import traceback
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ablations
from ablations.errors import UserError, nearest

_given: ContextVar[Container[str] | None] = ContextVar("given", default=None)


class UntrustedError(UserError):
    """A config from a folder names code, and the user did not."""


class NamedError(UserError, ValueError):
    """A dotted path leads to no object; the message says at which step."""


@contextmanager
def allow_imports(given: Container[str] | None) -> Iterator[None]:
    """Inside the block only these dotted paths are imported; None: all."""
    token = _given.set(given)
    try:
        yield
    finally:
        _given.reset(token)


LIBRARIES = (str(Path(__file__).parent), str(Path(ablations.__file__).parent), sysconfig.get_path("stdlib"), "<")
"""What the files start with whose lines say nothing about a mistake in a user's code; "<" is Python's importer."""
MOST_CHARACTERS = 300
"""Of the text of an error in someone else's code."""


def described(error: BaseException) -> str:
    """An error in code that a config names, in one line: its type, its text, and the last line of the user's own code.

    >>> described(KeyError("answer")), described(AssertionError()), described(UserError("rows.csv, line 2: empty"))
    ("KeyError: 'answer'", 'AssertionError', 'rows.csv, line 2: empty')
    """
    if isinstance(error, UserError):
        return str(error)
    text = " ".join(str(error)[:MOST_CHARACTERS].split())
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(LIBRARIES) and "site-packages" not in Path(f.filename).parts]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"


CODE = (
    "reward.function", "turns.environment", "algorithm.loss", "algorithm.advantage.estimator",
    "algorithm.overlong.punish", "algorithm.correction.kind", "algorithm.entropy.control", "algorithm.own_techniques",
    "logger.own_metrics",
)  # fmt: skip
"""Keys whose value names code if there is a dot in it."""


def named_code(key: str, value: object) -> tuple[str, ...]:
    """The dotted paths of the code that a setting names, which need the user's own word (SECURITY.md).

    >>> named_code("reward.weights.my_rewards.short", 0.5), named_code("algorithm.loss", "clip")
    (('my_rewards.short',), ())
    """
    if key.startswith("reward.weights."):
        paths = [key.removeprefix("reward.weights.")]
    else:
        given = value if isinstance(value, (list, tuple)) else [value]
        paths = [str(one) for one in given] if key in CODE else []
    return tuple(path for path in paths if "." in path)


def named_in(settings: Mapping[str, Any]) -> set[str]:
    """The words of settings that a user typed, code among them: texts, and the keys of mappings like reward.weights."""
    several = (Mapping, list, tuple)
    return {str(word) for value in settings.values() for word in (value if isinstance(value, several) else [value])}


def check_given(path: str) -> None:
    """Raises UntrustedError for a path that the user did not give."""
    given = _given.get()
    if given is not None and path not in given:
        raise UntrustedError(
            f"the run's config.yaml names code, {path}, and a run folder is data: read that code, and add trust=true "
            "to run it"
        )


def named_object(path: str) -> Any:
    """The object at `package.module.name`, or at `package.module.Class.name`.

    Raises UntrustedError: the user did not give the path.
    Raises NamedError: there is no such object, or its module fails while it is imported.
    """
    check_given(path)
    module, name = module_and_name(path)
    parent, _, last = module.rpartition(".")
    holder: Any
    try:
        with _importing(module, path):
            holder = import_module(module)
    except NamedError:
        holder = getattr(sys.modules.get(parent), last, None)  # what looks like a module may be a class
        if not isinstance(holder, type):
            raise
    if not hasattr(holder, name):
        near = nearest(name, dir(holder))
        raise NamedError(f"{module} has no {name}" + (f"; did you mean {near}?" if near else ""))
    return getattr(holder, name)


def check_path(path: str) -> None:
    """Raises NamedError unless the module of `package.module.name` is there; imports the packages above it only."""
    module_file(path)


def module_file(path: str) -> Path | None:
    """The file of the module in `package.module.name`, None if it has none. Imports the packages above it only.

    Raises UntrustedError, NamedError: as `named_object`.
    """
    check_given(path)
    module, _ = module_and_name(path)
    with _importing(module, path):
        spec = find_spec(module)
        if spec is None:
            raise ModuleNotFoundError(name=module)
    return Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None


def module_and_name(path: str) -> tuple[str, str]:
    """The two parts of `package.module.name`; raises NamedError for anything else."""
    module, _, name = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in path.split(".")):
        raise NamedError(f"{path!r} is not a path to a function or class; write package.module.name")
    return module, name


@contextmanager
def _importing(module: str, path: str) -> Iterator[None]:
    """Turns what an import raises, which may be anything, into a NamedError that says what failed, and where."""
    try:
        yield
    except (Exception, SystemExit) as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        # Another module that is absent is one that this one wants to import.
        if absent is None or not f"{module}.".startswith(f"{absent}."):
            raise NamedError(f"{module} cannot be imported: {described(error)}") from error
        parent, _, last = absent.rpartition(".")
        if parent:
            raise NamedError(f"{parent} has no module {last}; a path goes to the top of a module") from None
        raise NamedError(f"the module {absent} of {path} is not found; is its folder on PYTHONPATH?") from None
