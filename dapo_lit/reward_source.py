"""The source of a reward that a script or a notebook's cell defines, as a module that workers can import.

Written are the function, what of the script it uses (functions, classes, plain values, by their source or their value)
and the imports for the rest. The module's name is the digest of its text: another function is another module, and a run
records the source that it used.
"""

import ast
import hashlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ablations.errors import UserError


def written(function: Callable[..., Any], folder: Path) -> str:
    """Writes the module of a function of `__main__` into `folder`; its dotted path.

    Raises UserError: it is no `def`, or uses something that has neither a source nor a plain value.
    """
    parts: dict[str, str] = {}
    _collect(function, parts)
    # Imports and values first: a decorator or a default may use them.
    ordered = sorted(parts.values(), key=lambda text: text.startswith(("def ", "async ", "class ", "@")))
    text = "\n\n\n".join(ordered) + "\n"
    if "range" in vars(function):  # of a graded reward
        text += f"{function.__name__}.range = {_literal(function.__name__, 'range', vars(function)['range'])}\n"
    name = f"reward_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return f"{name}.{function.__name__}"


def _collect(thing: Callable[..., Any], parts: dict[str, str]) -> None:
    """Adds the source of a function or a class, and of what it uses, under their names."""
    name = getattr(thing, "__name__", "")
    if not (inspect.isfunction(thing) or inspect.isclass(thing)) or not name.isidentifier():
        raise UserError(
            f"reward={getattr(thing, '__qualname__', thing)}: no `def` of the script or notebook, so its source cannot "
            "be written for the workers that score answers; write it as `def`, or into a file, and give my_reward.score"
        )
    if inspect.isfunction(thing) and thing.__closure__:
        raise UserError(
            f"reward={name}: uses variables of the function that it is in; define it at the top of the script"
        )
    try:
        source = textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        raise UserError(f"reward={name}: its source is nowhere (typed into a prompt?); write it into a file") from None
    parts[name] = source.strip("\n")
    values = vars(inspect.getmodule(thing) or __import__("__main__"))
    for used in _names(source):
        if used in parts or used not in values:
            continue
        value = values[used]
        if isinstance(value, ModuleType):
            parts[used] = f"import {value.__name__} as {used}"
        elif getattr(value, "__module__", None) == "__main__" and callable(value) and hasattr(value, "__name__"):
            _collect(value, parts)
        elif isinstance(value, re.Pattern):
            parts[used] = f"import re as _re\n\n{used} = _re.compile({value.pattern!r}, {value.flags})"
        elif callable(value) and getattr(value, "__module__", None) and getattr(value, "__name__", None):
            parts[used] = f"from {value.__module__} import {value.__name__} as {used}"
        else:
            parts[used] = f"{used} = {_literal(name, used, value)}"


def _literal(function: str, name: str, value: Any) -> str:
    try:
        text = repr(value)
        if ast.literal_eval(text) == value:
            return text
    except (ValueError, SyntaxError, TypeError, RecursionError):
        pass
    raise UserError(
        f"reward={function}: uses {name}, a {type(value).__name__}, which the workers that score answers cannot be "
        "given; make it inside the function, or write both into a file and give my_reward.score"
    )


def _names(source: str) -> Iterator[str]:
    """The names that a source reads, those of its annotations and defaults too."""
    yield from dict.fromkeys(
        node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )
