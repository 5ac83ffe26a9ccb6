"""Runs commands in processes of their own that do not have to import torch and Lightning first.

    python command_server.py SOCKET     until standard input is closed

At the first request this script imports them, and then it forks a process for every request: a line of JSON with the
module, its arguments, folder and environment, and the files that take the output. It answers with the process's id.
What is forked is the command as `python -m` runs it, a process with signals and an exit code of its own. The exit code
is written to a file when the process has ended, and another file when everything that it started has ended too.

Workers of pytest-xdist are forked as well (forked_worker.py): a request with `worker`, the code that makes one of a
Python process, and with the descriptors of its streams.
"""

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path

IMPORTED = (
    "dapo_lit.train", "dapo_lit.lit.fit", "ablations.report.report",
    "dapo_lit.cli.command", "transformers.models.qwen2.modeling_qwen2", "pyarrow.dataset", "wandb",
)  # fmt: skip
"""What most commands import sooner or later."""
ALSO = "TESTS_COMMANDS_IMPORT"
"""The variable with further modules, of a folder of tests whose commands all import them."""


def run(request: dict) -> None:
    """The command, in a process that was forked for it; does not return."""
    code = 1
    try:
        if request["terminal"]:
            os.setsid()  # the first terminal that the leader of a session opens for reading is its own
        for number, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(request["terminal"] or request[name], os.O_RDWR | os.O_CREAT | os.O_APPEND)
            os.dup2(file, number)
        if request["terminal"]:
            # Those of this process were opened on files, and would seek.
            sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit it as ignored
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        # The checkout is one that is being changed; tests/test_study_launch.py tests that studies refuse it.
        import_module("dapo_lit.cli.study_launch").uncommitted = list
        sys.path[:1] = [request["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        sys.argv = [request["module"], *request["arguments"]]
        sys.modules.pop(request["module"], None)  # imported below as a module, run here as a program
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        if not isinstance(ended.code, int | None):  # a message, which the interpreter would print
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def work(request: dict, streams: list[int]) -> None:
    """A worker of pytest-xdist, in a process that was forked for it; does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, given in enumerate(streams):
        os.dup2(given, number)
        os.close(given)
    sys.stdin, sys.stdout, sys.stderr = (open(n, mode, closefd=False) for n, mode in enumerate("rww"))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["-c"]
    try:
        exec(request["worker"], {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
    os._exit(0)


def watched(request: dict, announce: int) -> None:
    """Forks the command, announces its id and writes down how it ended; does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what outlives the command becomes a child of this process
    child = os.fork()
    if child == 0:
        os.close(announce)
        run(request)
    os.write(announce, f"{child}\n".encode())
    os.close(announce)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    part = Path(request["exit_code"] + ".part")
    part.write_text(str(code))
    part.rename(request["exit_code"])
    signal.signal(signal.SIGALRM, lambda *_: kill_children())
    signal.alarm(60)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    if not signal.alarm(0):
        os._exit(0)
    with suppress(OSError):  # the test has ended too
        Path(request["all_ended"]).touch()
    os._exit(0)


def kill_children() -> None:
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    signal.alarm(1)  # and what those leave behind


def reap(*_: object) -> None:
    """Waits for those that have ended, so that their seconds are among those of this process."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def import_all() -> None:
    import torch

    torch.set_num_threads(1)
    for name in (*IMPORTED, *os.environ.get(ALSO, "").split()):
        import_module(name)
    # Hundreds of patterns, which transformers compiles when it loads its first model.
    import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("qwen2")
    # Most commands of the tests choose these groups and no other. Hydra's grammars and plugins are loaded by it too.
    import_module("dapo_lit.cli.config_tree").composed_tree(["+experiment=four_sums"])
    gc.collect()
    gc.freeze()  # a process that is forked has not to look through all this


def received(connection: socket.socket) -> tuple[dict, list[int]]:
    """A request, and the streams of a worker."""
    text, streams = b"", list[int]()
    while not text.endswith(b"\n"):
        part, given, *_ = socket.recv_fds(connection, 1 << 20, 3)
        text += part
        streams += given
    return json.loads(text), streams


def main() -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen()
        print("listening", flush=True)
        waits_for = [listening, sys.stdin]
        if sys.stdin in select.select(waits_for, [], [])[0]:
            return
        import_all()
        signal.signal(signal.SIGCHLD, reap)
        while sys.stdin not in select.select(waits_for, [], [])[0]:
            connection = listening.accept()[0]
            with connection:
                request, streams = received(connection)
                if os.fork() == 0:
                    listening.close()
                    if streams:
                        work(request, streams)  # it holds the connection open to its end
                    watched(request, connection.detach())
                for stream in streams:
                    os.close(stream)
        reap()


if __name__ == "__main__":
    main()
