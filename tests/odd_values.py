"""Draws for tests of what comes from outside: a value of a tree replaced or removed, bytes of a file damaged, a command
that must answer in one line.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

DRAWS = 300 if "DAPO_LIT_MATRIX" in os.environ else 25
"""A kind of file: `make sweeps` draws the more."""
ODD = (
    None, [], {}, "x", "", -1, 0, 1, 2.5, 10**30, 1e308, -1e308, True, float("nan"), float("inf"), "9" * 5000,
    "<script>alert(1)</script>", "../../../x", "/", "a\x1b[2Jb\nc", "${oc.env:HOME}", ["a", 1], {"a": 1}, [[1.0]],
    list(range(20_000)),
)  # fmt: skip


def spots(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a tree, the tree's own first."""
    yield at
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield from spots(value, (*at, key))


def put(tree: Any, at: Sequence[Any], value: Any) -> Any:
    """The tree with another value at a path."""
    if not at:
        return value
    inner = tree
    for part in at[:-1]:
        inner = inner[part]
    inner[at[-1]] = value
    return tree


def altered(tree: Any, draw: Random) -> tuple[Any, str]:
    """The tree with one value replaced or removed, and which, in words. The tree is changed in place."""
    at = draw.choice(list(spots(tree)))
    if at and draw.random() < 0.2:
        inner = tree
        for part in at[:-1]:
            inner = inner[part]
        del inner[at[-1]]
        return tree, f"{at} removed"
    value = draw.choice(ODD)
    return put(tree, at, value), f"{at} = {str(value)[:40]!r}"


def damaged(content: bytes, draw: Random) -> bytes:
    """Bytes of a file cut, flipped, doubled or overwritten."""
    start, size = draw.randrange(max(len(content), 1)), draw.choice([1, 1, 4, 40, 400])
    match draw.randrange(5):
        case 0:
            return content[:start]
        case 1:
            return (
                content[:start]
                + bytes(byte ^ 1 << draw.randrange(8) for byte in content[start : start + 1])
                + content[start + 1 :]
            )
        case 2:
            return content[:start] + content[start + size :]
        case 3:
            return content[: start + size] + content[start:]
        case _:
            return content[:start] + draw.randbytes(size) + content[start + size :]


def answer(command: Callable[[Sequence[str]], int | None], *arguments: object) -> tuple[int, str, str]:
    """Exit code, output and errors of a command in this process. An exception that leaves it is the test's."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = command([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return int(code or 0), out.getvalue(), err.getvalue()


def check_answer(found: tuple[int, str, str], what: str) -> None:
    """A command does its work (0), says that some of it is missing (3), or refuses in one line (2)."""
    code, out, err = found
    assert code in (0, 2, 3), (what, found)
    if code == 2:
        assert len(err.strip().splitlines()) == 1, (what, err)
    assert "\x1b" not in out + err, (what, found)
