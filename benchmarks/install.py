"""How long `make install` takes in a clone through a slow line and without a cache, with pip and with uv.

    pip download torch==2.13.0 --no-deps --index-url https://download.pytorch.org/whl/cpu
    python benchmarks/install.py torch-2.13.0*.whl [--mbit 50] [--out benchmarks/results/install.json]

Packages come from PyPI through a server on this machine that spaces their bytes; torch's build for the CPU is the file
that is named. uv is measured where it is on the path. Run it on idle cores: most of the rest is unpacking.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from first_run import ROOT, machine

PAGES, FILES = "https://pypi.org", "https://files.pythonhosted.org"


class Line:
    """All bytes of all connections at one rate."""

    def __init__(self, mbit: float) -> None:
        self.bytes_per_s, self.sent = mbit * 1e6 / 8, 0
        self._free, self._lock = time.monotonic(), threading.Lock()

    def send(self, source: BinaryIO, target: Any) -> None:
        while chunk := source.read(1 << 16):
            with self._lock:
                self._free = max(self._free, time.monotonic()) + len(chunk) / self.bytes_per_s
                self.sent, wait = self.sent + len(chunk), self._free - time.monotonic()
            time.sleep(max(0.0, wait))
            target.write(chunk)


class Index(BaseHTTPRequestHandler):
    """PyPI's index with its files' addresses on this machine, and one file in place of its torch."""

    line: Line
    torch: Path

    def log_message(self, *_: Any) -> None:
        """Requests are not printed."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        own, (size, kind, source) = self.path.startswith("/torch/"), self._found()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command == "GET":
            self.line.send(source, self.wfile)
        if own:
            source.close()

    def _found(self) -> tuple[int, str, BinaryIO]:
        """Size, type and bytes of what was asked for."""
        if self.path == "/simple/torch/":
            link = f'<a href="/torch/{self.torch.name}" data-core-metadata="true">{self.torch.name}</a>'
            return len(link), "text/html", BytesIO(link.encode())
        if self.path.endswith(".whl.metadata") and self.path.startswith("/torch/"):
            with zipfile.ZipFile(self.torch) as wheel:
                name = next(one for one in wheel.namelist() if one.endswith(".dist-info/METADATA"))
                return wheel.getinfo(name).file_size, "text/plain", BytesIO(wheel.read(name))
        if self.path.startswith("/torch/"):
            return self.torch.stat().st_size, "application/octet-stream", self.torch.open("rb")
        if self.path.startswith("/simple/"):
            request = urllib.request.Request(PAGES + self.path, headers={"Accept": self.headers["Accept"] or "*/*"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read().replace(FILES.encode(), f"http://{self.headers['Host']}".encode())
                return len(text), answer.headers["Content-Type"], BytesIO(text)
        answer = urllib.request.urlopen(FILES + unquote(self.path), timeout=60)
        return int(answer.headers["Content-Length"]), "application/octet-stream", answer


def installed(tool: str, torch: Path, mbit: float) -> dict[str, Any]:
    """Seconds, processor seconds and megabytes of `make install` in a new clone."""
    line = Line(mbit)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (Index,), {"line": line, "torch": torch}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    index = f"http://127.0.0.1:{server.server_port}/simple"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "MAKE"))}
    environment = kept | {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index, "PIP_NO_CACHE_DIR": "1"}
    environment |= {"UV_DEFAULT_INDEX": index, "UV_NO_CACHE": "1", "UV_NO_CONFIG": "1"}
    own = (Path(found).parent for found in [shutil.which("uv")] if found)
    if tool == "pip":  # make takes uv where it finds it
        hidden = set(map(str, own))
        environment["PATH"] = os.pathsep.join(one for one in os.environ["PATH"].split(os.pathsep) if one not in hidden)
    with tempfile.TemporaryDirectory(prefix="install_") as name:
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", name], check=True)
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = ["make", "install", f"PYTHON={sys.executable}", "TORCH="]
        subprocess.run(command, cwd=name, env=environment, check=True, stdout=subprocess.DEVNULL)
        took, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    server.shutdown()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"tool": tool, "s": round(took), "processor_s": round(used), "mb": round(line.sent / 1e6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torch", type=Path, help="torch's wheel for the CPU")
    parser.add_argument("--mbit", type=float, default=50.0, help="millions of bits a second (default: 50)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "mbit": options.mbit, "rows": []}
    for tool in ("pip", "uv") if shutil.which("uv") else ("pip",):
        row = installed(tool, options.torch.resolve(strict=True), options.mbit)
        print(f"{tool:4} {row['s']} s, of which {8 * row['mb'] / options.mbit:.0f} s for {row['mb']} MB")
        found["rows"].append(row)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
