"""The gate: what is only read comes in here, within bounds of size, depth and number, and nothing else opens a file.

    read_text(file)                     # a regular file of at most 1 MB, in UTF-8
    json_tree(content, file)            # its plain values
    yaml_tree(text, file)               # the same of YAML, each alias counted as often as it is used

A few hundred bytes can stand for more than a machine holds, a link may lead to a device, and a pipe never ends. Each
refusal is one line with the file. `border.py` makes values of declared types of what comes out.
"""

import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ablations.errors import DamagedError, UserError

MB = 1_000_000
MOST_BYTES = MB
"""Of a file that somebody writes, or that describes a run. Larger ones say how large they may be."""
MOST_VALUES = 1_000_000
"""Of JSON, which holds as many as it has commas and brackets."""
MOST_YAML = 100_000
"""Values and keys of YAML; a config has some hundred."""
DEEPEST = 100
"""Levels of a tree. Python's own limit would be reached in whatever walks it later."""
LONGEST_NUMBER = 300
"""Digits of a whole number in JSON: every one is a float too."""


@contextmanager
def opened(file: Path, most: int | None = None, error: type[UserError] = DamagedError) -> Iterator[io.BufferedReader]:
    """A regular file, for reading bytes; no device, and no pipe, which would be waited for.

    most: its bytes, at the most; None: any number, for what is read in parts.

    Raises FileNotFoundError, NotADirectoryError: there is none; `error`: it is none to read.
    """
    try:
        # A pipe without a writer would be waited for.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError) as reason:  # ValueError: a zero byte in the name
        raise error(f"{file}: cannot be read ({getattr(reason, 'strerror', None) or reason})") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise error(f"{file}: cannot be read (it is not a regular file)")
    with os.fdopen(descriptor, "rb") as stream:
        if most is not None and found.st_size > most:
            raise error(f"{file}: cannot be read ({found.st_size:,} bytes; at most {most:,} are read)")
        try:
            yield stream
        except OSError as reason:
            raise error(f"{file}: cannot be read ({reason.strerror or reason})") from None


def read_bytes(file: Path, most: int = MOST_BYTES, error: type[UserError] = DamagedError) -> bytes:
    """The content of a file, as `opened` gives it."""
    with opened(file, most, error) as stream:
        content = stream.read(most + 1)  # a file that grows, and those of /proc, have no size before
    if len(content) > most:
        raise error(f"{file}: cannot be read (more than {most:,} bytes)")
    return content


def read_text(
    file: Path,
    most: int = MOST_BYTES,
    error: type[UserError] = DamagedError,
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
) -> str:
    """The text of a file, as `opened` gives it, with lines that end as Python's do; `error` if it is not UTF-8."""
    content = read_bytes(file, most, error)
    try:
        return io.TextIOWrapper(io.BytesIO(content), encoding=encoding, errors=errors).read()
    except UnicodeDecodeError:
        raise error(f"{file}: cannot be read (it is not UTF-8)") from None


def json_tree(
    content: bytes | str,
    place: object,
    error: type[UserError] = DamagedError,
    remedy: str = "",
    *,
    most: int = MOST_VALUES,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Parses JSON in UTF-8.

    most: values that it may hold.
    pairs: makes a mapping of its names and values; None: a name that occurs twice has its last value.

    Raises `error` in one line: it is no JSON, or larger or nested deeper than any file of ours.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        # Before it is parsed: an empty list takes two characters of text and 60 bytes of memory.
        if (values := sum(map(text.count, ",[{"))) > most:
            raise ValueError(f"it may hold {values:,} values; at most {most:,} are read")
        tree = json.loads(text, parse_int=_whole, object_pairs_hook=pairs)
        if fault := size_fault(tree, most):
            raise ValueError(fault)
        return tree
    except RecursionError:
        reason = "it is nested too deep"
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except json.JSONDecodeError as fault:
        reason = f"it is not JSON: {fault}" if content else "it is empty"
    except ValueError as fault:
        reason = str(fault)
    raise error(f"{place} cannot be read ({reason}){remedy}") from None


def size_fault(tree: Any, most: int) -> str | None:
    """What is wrong with plain values that are nested deeper than DEEPEST, or are more than `most`; None: nothing. One
    that is held in several places counts as often."""
    level, found = [tree], 0
    for _ in range(DEEPEST):
        nested = [
            node.values() if isinstance(node, dict) else node for node in level if isinstance(node, (dict, list, tuple))
        ]
        found += sum(map(len, nested))
        if found > most:
            return f"it holds more than {most:,} values"
        level = [value for values in nested for value in values]
        if not level:
            return None
    return "it is nested too deep"


def _whole(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"it has a number of {len(digits):,} digits")
    return int(digits)


class YamlLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """libyaml's loader, where PyYAML has it, is ten times as fast; a study has one config a run.

    Reads 1e-06 as a number, as YAML 1.2 and OmegaConf do; to PyYAML it is text without a point.
    """


YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _yaml_int(loader: Any, node: yaml.Node) -> int:
    # 1:30:00 is a number too, whose size is quadratic to compute; and keys beyond 64 bits may share one hash.
    number: int = loader.construct_yaml_int(node) if len(node.value) <= LONGEST_NUMBER else 1 << 64
    if abs(number) >= 1 << 64:
        raise ValueError(f"it has a whole number beyond 64 bits, {str(node.value)[:20]}...")
    return number


def _yaml_float(loader: Any, node: yaml.Node) -> float:
    if len(node.value) > LONGEST_NUMBER:
        raise ValueError(f"it has a number of {len(node.value):,} characters")
    found: float = loader.construct_yaml_float(node)
    return found


YamlLoader.add_constructor("tag:yaml.org,2002:int", _yaml_int)
YamlLoader.add_constructor("tag:yaml.org,2002:float", _yaml_float)


ODD_TAGS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of PyYAML's constructors, which index, match and convert texts that do not fit their tags."""


def yaml_tree(
    text: str, place: object, error: type[UserError] = DamagedError, remedy: str = "", *, most: int = MOST_YAML
) -> Any:
    """Parses YAML of plain values.

    most: values that it may hold, with those that aliases stand for.

    Raises `error` in one line: it is none, or larger or nested deeper.
    """
    try:
        # Before it is composed: libyaml's own composer crashes on deep nesting, and merged keys are copied.
        _check_events(yaml.parse(text, YamlLoader), most)
        return yaml.load(text, YamlLoader)
    except yaml.YAMLError as fault:
        reason = f"it is not YAML: {fault}"
    except ODD_TAGS as fault:
        reason = str(fault)
    raise error(f"{place} cannot be read ({' '.join(reason.split())[:300]}){remedy}")


def _check_events(events: Iterable[yaml.Event], most: int) -> None:
    """Raises ValueError where YAML, with every alias written out, would be too deep or too large, or without an end."""
    found: dict[str, tuple[int, int]] = {}  # anchor -> values, levels
    waiting: list[list[Any]] = []  # of collections that have not ended: anchor, values before it, levels in it
    values = 0
    for event in events:
        anchor, size, levels = getattr(event, "anchor", None), 1, 1
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before, inner = waiting.pop()
            size, levels = values - before, inner + 1
        elif isinstance(event, yaml.CollectionStartEvent):
            waiting.append([anchor, values, 0])
            found.pop(str(anchor), None)
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == name for name, *_ in waiting) and anchor not in found:
                raise ValueError(f"it holds itself: *{str(anchor)[:40]}")
            size, levels = found.get(str(anchor), (1, 1))
            values += size
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
        else:
            continue
        if values > most:
            raise ValueError(f"with its aliases written out it holds more than {most:,} values")
        if len(waiting) + levels > DEEPEST:
            raise ValueError("it is nested too deep")
        if waiting and not isinstance(event, yaml.CollectionStartEvent):
            waiting[-1][2] = max(waiting[-1][2], levels)
        if anchor and not isinstance(event, (yaml.AliasEvent, yaml.CollectionStartEvent)):
            found[anchor] = (size, levels)
