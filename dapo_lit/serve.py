"""Serves one run on this machine: its page, and buttons that replay a step or train on without a technique.

    python -m dapo_lit.serve runs/dapo/dapo/seed_0

Prints an address with a random token; who does not know it is answered 404. Listens on 127.0.0.1 only. A request
chooses one of a few addresses made of the run's recorded steps and the techniques; no part of it becomes a path, an
argument or a command. A click starts one command of this package at a time, with the rules of that command.
"""

import hmac
import html
import secrets
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ablations.arguments import CommandParser
from ablations.command_text import setting
from ablations.errors import UserError
from ablations.files.layout import is_run, kept_states, playable_page
from ablations.screen import on_screen, printable
from ablations.techniques import REGISTER

HORIZON = 4
"""Steps of a fork, as +study=fork has them."""
LINES = 40
"""Lines of a command's output that are shown."""


@dataclass
class Job:
    """A command that was started by a click."""

    arguments: tuple[str, ...]
    """Those after `python -m`."""
    process: subprocess.Popen[str] | None = None
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES))

    @property
    def state(self) -> str:
        """In words: `running`, `done` or how it failed."""
        code = self.process.poll() if self.process else None
        return "running" if code is None else "done" if code == 0 else f"ended with exit code {code}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *self.arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(printable(line.rstrip()))
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=60)


@dataclass(frozen=True)
class Page:
    """A page and where it comes from, which decides what it may do in a browser."""

    text: str
    from_folder: bool = False
    """It was read from the run's folder, which may be a stranger's; what it holds says nothing of where it is from."""


class LivePage:
    """What can be seen and started of one run; answers are whole pages.

    token: the first part of every address.
    """

    def __init__(self, run: Path, token: str) -> None:
        self.run, self.token = run, token
        self.job: Job | None = None
        self._lock = threading.Lock()

    def views(self) -> dict[str, Callable[[], Page]]:
        """Address below the token -> what makes its page."""
        found: dict[str, Callable[[], Page]] = {"": self.index, "run.html": self._run_page, "job": self._job_page}
        for step in kept_states(self.run):
            found[playable_page(Path(), step).as_posix()] = lambda step=step: self._playable(step)  # type: ignore[misc]
            for technique in REGISTER:
                found[f"fork/{step}/{technique}"] = lambda s=step, t=technique: self._fork_page(s, t)  # type: ignore[misc]
        return found

    def actions(self) -> dict[str, tuple[str, ...]]:
        """Address below the token -> the arguments of the command that a click starts."""
        found: dict[str, tuple[str, ...]] = {}
        for step in kept_states(self.run):
            found[f"make/{step}"] = ("dapo_lit.replay", str(self.run), f"step={step}", "--html")
            for technique in REGISTER:
                found[f"fork/{step}/{technique}"] = self._fork_command(step, technique)
        return found

    def start(self, arguments: tuple[str, ...]) -> bool:
        """Starts a command unless one is running; whether it did."""
        with self._lock:
            if self.job is not None and self.job.state == "running":
                return False
            self.job = Job(arguments)
            self.job.start()
            return True

    def _fork_command(self, step: int, technique: str) -> tuple[str, ...]:
        from ablations.designs import Arm
        from ablations.files.record import read_config

        config = read_config(self.run)
        techniques, left = config["algorithm"]["techniques"], config["budget"]["steps"] - step + 1
        on = frozenset(name for name in REGISTER if techniques.get(name))
        arm = Arm(on ^ {technique}).name
        own = (setting("fork.run", str(self.run)), f"fork.steps=[{step}]", setting("study.arms", [arm]))
        # A fork ends with its run.
        horizon = [f"fork.horizon={left}"] if left < HORIZON else []
        return ("dapo_lit.train", "-m", "+study=fork", *own, *horizon, f"study_name=fork_{technique}")

    def _fork_report(self, technique: str) -> Path:
        """Where the fork's command writes its page: next to the folders of the states."""
        return Path("runs") / f"fork_{technique}" / "_".join(self.run.resolve().parts[-3:]) / "report.html"

    def index(self) -> Page:
        """Every recorded step with its buttons, and the command that is running."""
        rows = []
        for step in kept_states(self.run):
            page, made = playable_page(Path(), step).as_posix(), playable_page(self.run, step).is_file()
            play = _link(page, "open") if made else _button(f"make/{step}", "make the page to play with (minutes)")
            rows.append(f"<h2>Step {step}</h2><p>{play}</p><ul>")
            for record in REGISTER.values():
                shown = _link(f"{page}#{record.switch}", "in this step") if made else "in this step: make its page"
                fork = f"fork/{step}/{record.switch}"
                told = _link(fork, "what the fork says") if self._fork_report(record.switch).is_file() else ""
                train = _button(fork, "train on, with and without it")
                rows.append(f"<li><b>{html.escape(record.label)}</b>: {shown} · {train} {told}")
            rows.append("</ul>")
        if not rows:
            rows = ["<p>This run kept no training state: train it again with <code>replay.record=[4,8]</code>.</p>"]
        job = f"<p>{_link('job', 'the last command')}: {self.job.state}</p>" if self.job else ""
        title = html.escape(str(self.run))
        return _page(title, f"<p>{_link('run.html', 'curves and completions')}</p>{job}{''.join(rows)}")

    def _run_page(self) -> Page:
        from ablations.report.run_page import write_run_page

        page = write_run_page(self.run)
        if page is None:
            return _page("No step yet", "<p>The run has no row yet.</p>")
        return Page(page.read_text(encoding="utf-8"), from_folder=True)

    def _playable(self, step: int) -> Page:
        file = playable_page(self.run, step)
        if file.is_file():
            return Page(file.read_text(encoding="utf-8"), from_folder=True)
        # A page below a folder: its addresses go up.
        return _page(f"Step {step}", f"<p>Not made yet. {_button(f'../make/{step}', 'make it (minutes)')}</p>")

    def _fork_page(self, step: int, technique: str) -> Page:
        file = self._fork_report(technique)
        if file.is_file():
            return Page(file.read_text(encoding="utf-8"), from_folder=True)
        again = _button(f"../../fork/{step}/{technique}", "train on, with and without it")
        return _page(REGISTER[technique].label, f"<p>No fork yet. {again}</p>")

    def _job_page(self) -> Page:
        if self.job is None:
            return _page("No command", "<p>Nothing was started.</p>")
        command = html.escape(f"python -m {' '.join(self.job.arguments)}")
        lines = html.escape("\n".join(self.job.lines))
        again = '<meta http-equiv="refresh" content="3">' if self.job.state == "running" else ""
        body = f"<p>{_link('.', 'back')} · {self.job.state}</p><p><code>{command}</code></p><pre>{lines}</pre>"
        return _page("The last command", body, again)


STYLE = (
    ":root{color-scheme:light dark}body{margin:0 auto;max-width:52rem;padding:1.5rem;font:16px/1.5 system-ui,sans-serif"
    ";overflow-wrap:anywhere}form{display:inline}button{font:inherit;padding:.25rem .6rem;cursor:pointer}"
    "pre{white-space:pre-wrap;font-size:.85rem}li{margin:.4rem 0}"
)
OWN = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
FROM_A_FOLDER = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The policy of pages with scripts. A stranger's run folder may hold another page under such a name: it gets an origin
of its own, from which nothing can be started, and no network."""


def _page(title: str, body: str, head: str = "") -> Page:
    named = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    start = f"<!doctype html><html>{named}{head}<title>{title}</title><style>{STYLE}</style>"
    return Page(f"{start}<h1>{title}</h1>{body}</html>")


def _link(address: str, label: str) -> str:
    return f'<a href="{address}">{html.escape(label)}</a>'


def _button(address: str, label: str) -> str:
    return f'<form method="post" action="{address}"><button>{html.escape(label)}</button></form>'


class Handler(BaseHTTPRequestHandler):
    """Answers GET by a page and POST by starting a command; everything else is refused."""

    page: LivePage
    """Set by `server`."""
    timeout = 20

    def do_GET(self) -> None:
        if (place := self._place()) is None:
            return
        if place not in (views := self.page.views()):
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        self._answer(HTTPStatus.OK, views[place]())

    def do_POST(self) -> None:
        if (place := self._place()) is None:
            return
        # A browser names the page that a form is on. "null" is that of a page from the run's folder, see FROM_A_FOLDER.
        if self.headers.get("Origin", self._origin()) != self._origin():
            self._refuse(HTTPStatus.FORBIDDEN)
        elif (arguments := self.page.actions().get(place)) is None:
            self._refuse(HTTPStatus.NOT_FOUND)
        elif self.page.start(arguments):
            self._answer(HTTPStatus.SEE_OTHER, Page(""), Location=f"/{self.page.token}/job")
        else:
            self._answer(HTTPStatus.CONFLICT, _page("Busy", "<p>Another command is running; one at a time.</p>"))

    def __getattr__(self, name: str) -> Any:
        # http.server asks for do_METHOD, and would answer 501.
        if name.startswith("do_"):
            return lambda: self._refuse(HTTPStatus.METHOD_NOT_ALLOWED)
        raise AttributeError(name)

    def _origin(self) -> str:
        return f"http://{self.headers.get('Host', '')}"

    def _place(self) -> str | None:
        """The address below the token; None, and the request is answered, if it is not for this page."""
        port = int(self.server.server_address[1])  # type: ignore[index]
        # A name that resolves to this machine would make another site's script of the same origin (DNS rebinding).
        if self.headers.get("Host", "") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            self._refuse(HTTPStatus.FORBIDDEN)
            return None
        token, slash, place = self.path.removeprefix("/").partition("/")
        # Of bytes, as text that is not ASCII cannot be compared.
        if not (slash and hmac.compare_digest(token.encode(errors="replace"), self.page.token.encode())):
            self._refuse(HTTPStatus.NOT_FOUND)
            return None
        return place

    def _refuse(self, status: HTTPStatus) -> None:
        self._answer(status, _page(f"{status.value} {status.phrase}", ""))

    def _answer(self, status: HTTPStatus, page: Page, **headers: str) -> None:
        content = page.text.encode()
        self.send_response(status)
        given = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Length": str(len(content)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
            "Connection": "close",
        }  # fmt: skip
        own = {
            "Content-Security-Policy": FROM_A_FOLDER if page.from_folder else OWN,
            # With no-referrer a form of this page would not say where it is.
            "Referrer-Policy": "no-referrer" if page.from_folder else "same-origin",
        }
        for name, value in (given | own | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def version_string(self) -> str:
        return "dapo_lit"

    def log_message(self, *_: object) -> None:
        pass


def server(page: LivePage, port: int = 0) -> ThreadingHTTPServer:
    """A server on 127.0.0.1, not started; port 0: a free one."""
    made = type("Bound", (Handler,), {"page": page})
    return ThreadingHTTPServer(("127.0.0.1", port), made)


@on_screen()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = CommandParser(prog="python -m dapo_lit.serve", description=__doc__)
    parser.add_argument("run", type=Path, help="runs/<study>/<arm>/seed_<n>")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    try:
        if not is_run(options.run):
            raise UserError(f"{options.run}: no run; give a folder such as runs/dapo/dapo/seed_0")
        page = LivePage(options.run, secrets.token_urlsafe(32))
        try:
            bound = server(page, options.port)
        except (OSError, OverflowError) as error:
            raise UserError(f"port={options.port}: {error}") from None
    except UserError as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    print(f"http://127.0.0.1:{bound.server_address[1]}/{page.token}/   (Ctrl-C ends it)", flush=True)
    try:
        bound.serve_forever()
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
    finally:
        bound.server_close()
        if page.job is not None:
            page.job.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
