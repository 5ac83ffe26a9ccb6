"""pytest with the shapes in signatures checked on every call: `python tests/checked_shapes.py tests/objective`.

An argument, a result or a field of a dataclass whose annotation has shapes of jaxtyping is compared with them; an axis
has one size throughout a call. Nothing of this is in a run: without the hook of `main`, annotations do nothing. A few
calls of a function are enough, so tests with hundreds of drawn examples are left out.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from jaxtyping import AbstractArray, install_import_hook

PACKAGES = ("dapo_lit", "ablations", "math_answers")
ROOMS = tuple(f"dapo_lit.{room}" for room in ("objective", "step", "policy", "switches", "engines.torch_engine"))


def fits(value: Any, annotation: Any) -> bool:
    """False where the annotation has a shape that the value has not. Other types are left to mypy."""
    parts, kind = get_args(annotation), get_origin(annotation)
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return isinstance(value, annotation)
    if kind in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if kind is tuple and Ellipsis not in parts:
        return all(map(fits, value, parts))
    if kind is dict and isinstance(value, dict):
        return all(fits(item, parts[1]) for item in value.values())
    if hasattr(annotation, "_fields"):  # a NamedTuple
        return all(map(fits, value, annotation.__annotations__.values()))
    return annotation is not NoneType or value is None


def checks(function: Callable[..., Any]) -> Callable[..., Any]:
    """The type checker that jaxtyping is given: refuses arguments whose shape is not that of their annotation."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        for name, value in bound.arguments.items():
            if not fits(value, signature.parameters[name].annotation):
                raise TypeError(name)
        return function(*arguments, **named)

    return checked


class WithoutExamples:
    """Leaves out what Hypothesis draws examples for."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if not hasattr(item.function, "hypothesis")]


def main() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:  # the forked process has them
        del sys.modules[name]
    install_import_hook(ROOMS, "checked_shapes.checks")
    # After the hook: what is imported before it is not checked.
    import pytest

    sys.exit(pytest.main(["-n", "0", "-q", "-rf", *sys.argv[1:]], [WithoutExamples()]))


if __name__ == "__main__":
    main()
