"""HTTP servers of a test, on a free port of this machine."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


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


@contextmanager
def serving(handler: type[Handler]) -> Iterator[str]:
    """Serves until the end of the block; yields the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
