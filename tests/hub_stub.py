"""A local server with the part of the Hugging Face hub's protocol that an upload uses; keeps what it is sent."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub(ThreadingHTTPServer):
    """Says that every file is a small one, so that all contents come with the commit."""

    created: list[dict]
    files: dict[str, bytes]


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        address = f"http://127.0.0.1:{self.server.server_port}/me/sums"
        match self.path.split("/")[2:]:
            case ["repos", "create"]:
                self.server.created.append(json.loads(body))
                self._answer({"url": address, "name": "me/sums"})
            case ["validate-yaml"]:
                self._answer({"errors": [], "warnings": []})
            case ["models", _, _, "preupload", "main"]:
                names = [file["path"] for file in json.loads(body)["files"]]
                self._answer({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
            case ["models", _, _, "commit", "main"]:
                for line in body.splitlines():
                    entry = json.loads(line)
                    if entry["key"] == "file":
                        self.server.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                self._answer({"commitUrl": f"{address}/commit/1", "commitOid": "1" * 40, "success": True})
            case _:
                self.send_error(404)

    def do_GET(self) -> None:
        self._answer({"id": "me/sums", "sha": "0" * 40, "siblings": []})

    def _answer(self, content: dict) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def hub() -> Iterator[Hub]:
    with Hub(("127.0.0.1", 0), _Handler) as server:
        server.created, server.files = [], {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
