"""What makes a command's life hard, applied to its process before it starts: see `apply`."""

import os
import platform
import resource
from typing import Any


def apply(host: str = "", stdout: str = "", **limits: Any) -> None:
    """
    Args:
        host: the name of the machine, as another one would have it.
        stdout: a file, or `closed pipe`.
        limits: RLIMIT_*, such as NOFILE or FSIZE.
    """
    if host:
        platform.node = lambda: host
    if stdout:
        read, write = os.pipe()
        os.close(read)
        os.dup2(write if stdout == "closed pipe" else os.open(stdout, os.O_WRONLY), 1)
        os.close(write)
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
