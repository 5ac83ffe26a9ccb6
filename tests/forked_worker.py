"""Stands in for the Python of a worker of pytest-xdist.

`command_server.py` forks the worker, which gets the streams of this process: imports take longer than most tests.
"""

import json
import os
import socket
import sys


def main() -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ["TESTS_COMMAND_SERVER"])
        asked = {"worker": sys.argv[sys.argv.index("-c") + 1], "cwd": os.getcwd(), "env": dict(os.environ)}
        socket.send_fds(server, [json.dumps(asked).encode() + b"\n"], [0, 1, 2])
        server.recv(1)  # until the worker has ended


if __name__ == "__main__":
    main()
