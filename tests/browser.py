"""Headless Chromium over its debugging pipe: tests open a page, run JavaScript in it and press keys."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CODES = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
"""Of the keys on which the browser itself acts, not only the page."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<!--<script>",
    "\u2028window.hacked = 1\u2029",
    "\u202eevil \x1b[31m ${window.hacked = 1} ]]>",
    "&lt;script&gt; javascript:window.hacked=1 {{ step }} {{ data }} {% raw %} {{ scripts }} {{ allowed }}",
]
"""Text of models and files that must stay text."""


class Browser:
    """One tab. Messages are JSON with a zero byte at the end; what the page reports meanwhile is in `events`."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._number = os.fdopen(commands, "wb", 0), os.fdopen(answers, "rb"), 0
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "result" in answer, answer
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._answers.read(1)) not in (b"\0", b""):
            text += byte
        assert text, "the browser ended"
        return json.loads(text)

    def open(self, page: Path) -> None:
        """Waits until the page says that it is ready."""
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        self.wait()

    def wait(self) -> None:
        while not self.evaluate("document.documentElement?.dataset.ready"):
            time.sleep(0.02)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page, as JSON."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        event = {"key": key, "windowsVirtualKeyCode": CODES.get(key, 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def tab_to(self, selector: str) -> None:
        """Presses Tab until an element of this kind has the focus."""
        for _ in range(self.evaluate("2 * document.querySelectorAll('*').length")):
            self.press("Tab")
            if self.evaluate(f"document.activeElement.matches({json.dumps(selector)})"):
                return
        raise AssertionError(f"Tab never reaches {selector}")

    def seen(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]


@contextmanager
def chromium(*more: str) -> Iterator[Browser]:
    """Skips the test where there is no Chromium. `more`: flags."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium (Debian: apt-get install chromium)")
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()

    def pipes() -> None:  # the browser reads commands from 3 and answers on 4
        first, second = os.dup(read_commands), os.dup(write_answers)
        os.dup2(first, 3)
        os.dup2(second, 4)

    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--disable-dev-shm-usage")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [found, *flags, *more, f"--user-data-dir={profile}"],
            preexec_fn=pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            os.close(read_commands)
            os.close(write_answers)
            yield Browser(commands, answers)
        finally:
            process.kill()
            process.wait()
