"""A local server with the part of the Hugging Face hub's protocol that an upload uses; keeps what it is sent."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from local_server import Handler, serving


@contextmanager
def hub() -> Iterator[SimpleNamespace]:
    """Its address, what was created and the files. It says that every file is small: all contents come at once."""
    kept = SimpleNamespace(url="", created=[], files={})

    class Hub(Handler):
        def post(self, path: str) -> None:
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            address = f"{kept.url}/me/sums"
            match path.split("/")[2:]:
                case ["repos", "create"]:
                    kept.created.append(json.loads(body))
                    self._json({"url": address, "name": "me/sums"})
                case ["validate-yaml"]:
                    self._json({"errors": [], "warnings": []})
                case ["models", _, _, "preupload", "main"]:
                    names = [file["path"] for file in json.loads(body)["files"]]
                    self._json({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
                case ["models", _, _, "commit", "main"]:
                    for entry in map(json.loads, body.splitlines()):
                        if entry["key"] == "file":
                            kept.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                    self._json({"commitUrl": f"{address}/commit/1", "commitOid": "1" * 40, "success": True})
                case _:
                    self.answer(b"", 404)

        def get(self, path: str) -> None:
            self._json({"id": "me/sums", "sha": "0" * 40, "siblings": []})

        def _json(self, content: dict) -> None:
            self.answer(json.dumps(content).encode(), Content_Type="application/json")

    with serving(Hub) as kept.url:
        yield kept
