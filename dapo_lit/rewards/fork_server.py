"""A small process that forks the workers: it has the imports done, so a killed worker is replaced in milliseconds.

Started by `processes.py` as a fresh interpreter, not through `multiprocessing`: that would import the training script,
and with it torch, into every worker. It has one thread and never computes, so forking from it is safe. It ends when its
control socket closes or its parent is gone, and takes the workers with it.
"""

import contextlib
import ctypes
import gc
import os
import pickle
import select
import signal
import socket
import sys

from dapo_lit.rewards.channel import encode_reply
from dapo_lit.rewards.worker import Setup, run

EXITED = "exited"
_PR_SET_PDEATHSIG = 1


def main(control_fd: int, parent: int) -> None:
    """Serves requests for workers: each is one byte with the file descriptor of the worker's socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=control_fd)
    setup = pickle.loads(control.recv(1 << 16))
    _import_ahead(setup)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, socket.socket] = {}
    try:
        while os.getppid() == parent:
            ready, _, _ = select.select([control.fileno(), woken], [], [], 1.0)
            if woken in ready:
                os.read(woken, 4096)
            _reap(children)
            if control.fileno() in ready:
                data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
                if not data:
                    break
                _fork_worker(children, control, socket.socket(fileno=descriptors[0]), setup)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _import_ahead(setup: Setup) -> None:
    if setup.symbolic:
        import dapo_lit.answers.full  # noqa: F401
        from dapo_lit.rewards.worker import refuse_evaluation

        refuse_evaluation()
    gc.collect()
    gc.freeze()


def _fork_worker(
    children: dict[int, socket.socket], control: socket.socket, connection: socket.socket, setup: Setup
) -> None:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        children[pid] = connection
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for sibling in children.values():
            sibling.close()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            run(connection, setup)
            code = 0
    finally:
        os._exit(code)


def _reap(children: dict[int, socket.socket]) -> None:
    """Reaps dead workers and sends the other end of their socket their exit codes."""
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if not done:
            continue
        connection = children.pop(pid)
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # the other end is closed, or its buffer full: it sees the end of the stream
            connection.send(encode_reply([EXITED, 0, os.waitstatus_to_exitcode(status)]))
        connection.close()
