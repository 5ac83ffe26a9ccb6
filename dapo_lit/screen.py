"""Output of the commands: no control sequences from elsewhere, lines fit the terminal, and losing it ends nothing."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import Any

CONTROL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90-\x9f]*(?:\x07|\x1b\\|\x9c)"  # OSC and the like: the clipboard
    r"|\x1b[ -/]*[0-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def printable(text: str) -> str:
    """Text from a model or a file without the C0 and C1 control characters that a terminal would obey.

    >>> printable("a\\x1b[31mred\\x1b]52;c;ZXZpbA==\\x07\\tb\\r\\x9b2Kc")
    'ared\\tbc'
    """
    return CONTROL.sub("", text)


START = re.compile(r"^ *(\S{1,12} {2,})?")
"""A line's indent and, in a table without borders, its name: where its further lines start."""


def folded(text: str, width: int) -> str:
    """Breaks lines longer than `width` characters at spaces; commands stay whole, so that they can be copied.

    >>> print(folded("  policy     qwen2, 495,744 parameters", 30))
      policy     qwen2, 495,744
                 parameters
    """
    fold = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False, expand_tabs=False)
    lines = text.split("\n")
    for place, line in enumerate(lines):
        if len(line) > width and not line.lstrip().startswith("python "):
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

    table = Table(title_justify="left", **style)
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=width).print(table)


class Unfailing:
    """A stream whose failure (a closed pipe, a full disk, a lost terminal) is said once, and the rest dropped.

    On a terminal, what is printed is folded to its width; text with control sequences is rich's, which fits.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
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
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())  # what the stream still holds goes there too
            os.close(nowhere)
            if self is not sys.stderr:
                print(f"warning: standard output is lost ({error}); nothing more is shown", file=sys.stderr, flush=True)

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


def install() -> None:
    """Puts a Screen in the place of standard output; neither stream can fail afterwards."""
    for name, kind in (("stdout", Screen), ("stderr", Unfailing)):
        # None: it was closed before the start
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if not isinstance(stream, Unfailing):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a locale of ASCII has no ± and no name of a foreign study
            setattr(sys, name, kind(stream))
