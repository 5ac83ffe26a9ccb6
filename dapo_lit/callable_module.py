"""`from dapo_lit import train` gives the module of the command `python -m dapo_lit.train`; called, it is the function.

Python binds a package's attribute to a submodule as soon as anything imports it, so a function of the same name beside
it would be there or not by the order of imports. A module whose class has `__call__` is both, always.
"""

import sys
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A module that calls the function of dapo_lit/api.py with its name."""

    @property
    def _function(self) -> Any:
        return getattr(import_module("dapo_lit.api"), self.__name__.rpartition(".")[2])

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._function(*arguments, **named)

    @property
    def __signature__(self) -> Signature:
        return signature(self._function)


def make_callable(name: str) -> None:
    """Called at the end of a module with its `__name__`."""
    sys.modules[name].__class__ = CallableModule
