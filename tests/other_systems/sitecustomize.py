"""Takes from Python, as it starts, what Linux has and other systems have not: the processors of a process, /proc, prctl
and mallopt, a limit of address space. A process that has this folder on its path imports it first."""

import ctypes
import errno
import os
import resource
import sys
from typing import Any

LACKING = ("prctl", "mallopt")
stat, setrlimit, library = os.stat, resource.setrlimit, ctypes.CDLL


class Library(library):
    def __getattr__(self, name: str) -> Any:
        if name in LACKING:
            raise AttributeError(name)
        return super().__getattr__(name)


def without_proc(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
    if not isinstance(path, int) and os.fspath(path).startswith("/proc"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return stat(path, *arguments, **options)


def opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith("/proc"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])


def limited(kind: int, limits: tuple[int, int]) -> None:
    if kind == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    setrlimit(kind, limits)


del os.sched_getaffinity, os.sched_setaffinity
ctypes.CDLL, os.stat, resource.setrlimit = Library, without_proc, limited
sys.addaudithook(opened)
