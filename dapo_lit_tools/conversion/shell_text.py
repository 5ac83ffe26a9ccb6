"""Arguments as text for a shell, in lines that fit a page."""

import re
from collections.abc import Iterator, Sequence

from ablations.command_text import word

WIDTH = 100
VARIABLES = re.compile(r"([\w.]+)='((?:[\w./:-]|\$\w+)*)'")


def in_lines(start: str, arguments: Sequence[str], end: str = "") -> Iterator[str]:
    """A command, or with `run=(` and `)` an array of bash's."""
    line, go_on = start, "" if end else " \\"
    for argument in map(_quoted, arguments):
        if len(line) + len(argument) > WIDTH:
            yield line + go_on
            line = "   "
        line += f"{'' if line.endswith('(') else ' '}{argument}"
    yield line + end


def _quoted(argument: str) -> str:
    """An argument for a shell, which may fill in variables of a path and nothing else."""
    # No character of it can start a command, so double quotes are as safe as single ones.
    path = VARIABLES.fullmatch(argument)
    return f'"{path[1]}={path[2]}"' if path else word(argument)
