"""HTTP servers of a test, on a free port of this machine."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Asks `get` and `post`, which a test writes, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def get(self, path: str) -> None:
        raise NotImplementedError

    def post(self, path: str) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.get(self.path.partition("?")[0])

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.post(self.path.partition("?")[0])

    def answer(self, body: bytes = b"{}", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Prints no stack trace where a client has left: some tests are about that."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(handler: type[Handler]) -> Iterator[str]:
    """Serves until the end of the block; yields the address."""
    with Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
