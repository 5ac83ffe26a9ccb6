"""Processes of vLLM that are forked from one that has imported it: the import takes three times as long as the start of
an engine, which takes as long as its tests. The process of an engine that a command starts is a fresh one.
"""

import multiprocessing
import os
import subprocess
from multiprocessing.connection import Connection

from dapo_lit.engines.vllm_engine import process_main

IMPORTED = ("vllm.entrypoints.llm", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([process_main.__name__, *IMPORTED])


def serve(pipe: Connection, variables: dict[str, str]) -> None:
    os.environ.update(variables)
    process_main.main(os.dup(pipe.fileno()), os.getppid())


class Forked:
    """What `process.py` has of `subprocess.Popen`."""

    def __init__(self, command: list[str], pass_fds: list[int], env: dict[str, str], stdin: int) -> None:
        pipe = Connection(os.dup(pass_fds[0]))
        self._process = FORKS.Process(target=serve, args=(pipe, env), daemon=True)
        self._process.start()
        pipe.close()
        self.pid = self._process.pid

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("vLLM", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
