"""Output of the commands: no control sequences from elsewhere, lines fit the terminal, and losing it ends nothing.

A status line says how far a long task is.
"""

import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from ablations.ending import stops_in_one_line

T = TypeVar("T")

CONTROL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90-\x9f]*(?:\x07|\x1b\\|\x9c)"  # OSC and the like: the clipboard
    r"|\x1b[ -/]*[0-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"  # what turns the direction of all that follows in the line
)


def printable(text: str) -> str:
    """Text from a model or a file without the control characters that a terminal would obey, and marks of direction.

    >>> printable("a\\u202e\\x1b[31mred\\x1b]52;c;ZXZpbA==\\x07\\tb\\r\\x9b2Kc")
    'ared\\tbc'
    """
    return CONTROL.sub("", text)


START = re.compile(r"^ *(\S{1,12} {2,})?")
"""A line's indent and, in a table without borders, its name: where its further lines start."""


COMMAND = re.compile(r" *(\w+ {2,})?\S*python\S* -m ")
"""A line that is a command, perhaps behind a name."""


def folded(text: str, width: int) -> str:
    """Breaks lines longer than `width` characters at spaces; commands stay whole, so that they can be copied.

    >>> print(folded("  policy     qwen2, 495,744 parameters", 30))
      policy     qwen2, 495,744
                 parameters
    """
    fold = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False, expand_tabs=False)
    lines = text.split("\n")
    for place, line in enumerate(lines):
        if len(line) > width and not COMMAND.match(line):
            fold.subsequent_indent = " " * (len(line) - len(START.sub("", line)))
            lines[place] = fold.fill(line)
    return "\n".join(lines)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Collection[str] = ("",),
    width: int | None = None,
    **style: Any,
) -> None:
    """Prints a table; columns are aligned to the right except those in `left`. style: arguments of rich's Table."""
    from rich.console import Console  # rich takes a tenth of a second, and most imports of this file print no table
    from rich.table import Table
    from rich.text import Text

    table = Table(title_justify="left", **style)
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    for row in rows:
        table.add_row(*map(Text, row))  # as it is: rich would take `[tensorboard]` for a style
    Console(width=width).print(table)


class StatusLine:
    """How far a task is and how long the rest takes, on standard error; nothing for one that is done in FIRST_S.

    On a terminal it is one line, rewritten in place, that goes when the task ends or anything else is printed.
    Elsewhere, as in a log, a line is printed now and then.
    """

    FIRST_S, EVERY_S, REWRITE_S = 5.0, 15.0, 0.5
    """Seconds before the first line, between two lines that stay, and between two states of one that is rewritten."""
    enabled: ClassVar[bool] = True
    """False: none in this process."""
    _length: ClassVar[int] = 0
    """Characters of the line that is on the terminal now."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.started = time.monotonic()
        self.due = self.started + self.FIRST_S

    @property
    def is_due(self) -> bool:
        """True if `update` would show something; for words that are costly to find."""
        return self.enabled and time.monotonic() >= self.due

    def update(self, done: float, total: float, words: str) -> None:
        """Shows `words`, such as `3 of 16 updates`, if it is time to, and the time left at the rate so far."""
        if not self.is_due:
            return
        now = time.monotonic()
        left = f", about {duration((now - self.started) * (total - done) / done)} left" if done > 0 else ""
        on_terminal = sys.stderr.isatty()
        # A log of a step of hours is not to be full of them: later lines are a tenth of the time so far apart.
        self.due = now + (self.REWRITE_S if on_terminal else max(self.EVERY_S, 0.1 * (now - self.started)))
        text = f"{self.task}: {words}{left}"
        if not on_terminal:
            print(text, file=sys.stderr, flush=True)
            return
        text = text[: shutil.get_terminal_size().columns - 1]
        self.erase()
        print(text, end="", file=sys.stderr, flush=True)
        StatusLine._length = len(text)

    @classmethod
    def erase(cls) -> None:
        """Removes the line from the terminal; whatever prints there calls it first."""
        if length := cls._length:
            cls._length = 0  # first: printing comes back here
            print("\r" + " " * length, end="\r", file=sys.stderr, flush=True)

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(self, *_: object) -> None:
        self.erase()


def with_status(items: Iterable[T], total: int, task: str, unit: str) -> Iterator[T]:
    """The items, with a status line that says how many of them are done."""
    with StatusLine(task) as line:
        for done, item in enumerate(items):
            line.update(done, total, f"{done:,} of {total:,} {unit}")
            yield item


def duration(seconds: float) -> str:
    """A time in one unit, as precise as an estimate is.

    >>> duration(0.2), duration(75), duration(150), duration(9000)
    ('1 s', '75 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{-(-seconds // 60):.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Unfailing:
    """A stream whose failure (a closed pipe, a full disk, a lost terminal) is said once, and the rest dropped.

    On a terminal, what is printed is folded to its width; text with control sequences is rich's, which fits.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._lost: int | None = None
        """A copy of the stream's file descriptor, once it has failed."""

    def write(self, text: str) -> int:
        StatusLine.erase()
        fits = "\x1b" in text or not self.stream.isatty()
        shown = text if fits else folded(text, shutil.get_terminal_size().columns)
        self._try(lambda: self.stream.write(shown))
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, action: Any) -> None:
        try:
            action()
        except OSError as error:
            self._lost = os.dup(self.stream.fileno())
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())  # what the stream still holds goes there too
            os.close(nowhere)
            if self is not sys.stderr:
                print(f"warning: standard output is lost ({error}); nothing more is shown", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leaves the stream to the program that had it before, which finds out for itself that it is lost."""
        self.flush()
        if self._lost is not None:
            self.stream.flush()  # to nowhere
            os.dup2(self._lost, self.stream.fileno())
            os.close(self._lost)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Screen(Unfailing):
    """Standard output: takes control sequences from rich alone, which finds the stream itself under this name."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.rich_proxied_file = Unfailing(stream)

    def write(self, text: str) -> int:
        super().write(printable(text))
        return len(text)

    def end(self) -> None:
        self.rich_proxied_file.end()
        super().end()


@contextmanager
def on_screen() -> Iterator[None]:
    """Around a command: a Screen is in the place of standard output, neither stream can fail, and a signal or an error
    of the system, such as a full disk, gives one line."""
    # Standard output ends first: that it is lost is said on standard error.
    with _replaced("stderr", Unfailing), _replaced("stdout", Screen), stops_in_one_line():
        try:
            yield
        except OSError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(2) from None


@contextmanager
def _replaced(name: str, kind: type[Unfailing]) -> Iterator[None]:
    before = getattr(sys, name)
    if isinstance(before, Unfailing):  # a command that another one runs
        yield
        return
    # None: it was closed before the start
    stream = before or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    errors = getattr(stream, "errors", None)
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")  # a locale of ASCII has no ± and no name of a foreign study
    shown = kind(stream)
    setattr(sys, name, shown)
    try:
        yield
    finally:
        shown.end()
        setattr(sys, name, before)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=errors)
