"""Checks of the fields that become part of a problem, with the message for a field that fails."""

import json
import math
from collections.abc import Mapping

from dapo_lit.data.rows import Row, RowError
from dapo_lit.errors import suggestion

SHOWN_CHARS = 60
"""Of a value in a message."""


class FieldChecks:
    """The checks of one data set. Remembers the ids seen so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._place_of_id: dict[str, str] = {}

    def statement(self, row: Row, key: str, value: object, *, needs: str = "`problem` and `answer`") -> str:
        """The text, unchanged; RowError if it is absent, not text, or blank. needs: the keys that every row has."""
        if value is None:
            raise _absent(row, key, needs)
        if not isinstance(value, str):
            raise row.error(f"`{key}` is {_kind(value)}, not text")
        if not value.strip():
            raise row.error(f"`{key}` is empty; write the text or delete the row")
        return _encodable(row, key, value)

    def chat(self, row: Row, key: str, messages: list[object]) -> tuple[str, tuple[Mapping[str, str], ...]]:
        """The text of the last message, which must be the user's, and the messages before it."""
        read: list[Mapping[str, str]] = []
        for message in messages:
            role, content = (
                (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
            )
            if not isinstance(content, str) or role not in ("system", "user", "assistant"):
                raise row.error(f'`{key}` must be text, or a list of {{"role": "user", "content": "..."}}')
            read.append({"role": str(role), "content": _encodable(row, key, content)})
        if not read or read[-1]["role"] != "user":
            raise row.error(f"`{key}` must end with a message of the user, which the policy answers")
        return read[-1]["content"], tuple(read[:-1])

    def answer(self, row: Row, key: str, value: object, *, needs: str = "`problem` and `answer`") -> str:
        """The answer as text without surrounding blanks; a number becomes text, 72.0 the text 72."""
        if value is None:
            raise _absent(row, key, needs)
        if isinstance(value, float) and math.isfinite(value):
            text = str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
        elif isinstance(value, str):
            text = _encodable(row, key, value.strip())
        elif isinstance(value, int) and not isinstance(value, bool):
            text = str(value)
        else:
            raise row.error(f"`{key}` is {_kind(value)}; write the answer as text or as a number")
        if not text:
            raise row.error(f"`{key}` is empty; write the answer or delete the row")
        return text

    def unique_id(self, row: Row, value: object, number: int) -> str:
        """The row's id, or one made from the data set's name and the row's number (from 0)."""
        if value is None:
            identity = f"{self.name}-{number}"
        elif isinstance(value, str) and value.strip():
            identity = _encodable(row, "id", value)
        elif isinstance(value, int) and not isinstance(value, bool):
            identity = str(value)
        else:
            raise row.error(f"`id` is {_kind(value)}; write a text or an integer, or leave `id` out of every row")
        place = f"{row.file.name}, {row.place}"
        first = self._place_of_id.setdefault(identity, place)
        if first != place:
            raise row.error(
                f"the id {identity!r} is already used at {first}; ids must differ (leave `id` out to number rows)"
            )
        return identity


def _absent(row: Row, key: str, needs: str) -> RowError:
    hint = suggestion(key, [str(name) for name in row.fields if name != key], "`{}`")
    return row.error(f"has no `{key}`; {hint}; every row needs {needs}")


def _encodable(row: Row, key: str, text: str) -> str:
    """The text; RowError for a lone surrogate (JSON's "\\ud800"), which no tokenizer and no file accepts."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise row.error(f"`{key}` has a lone surrogate at character {error.start + 1}; remove it") from None
    return text


def _kind(value: object) -> str:
    """The value as JSON has it, shortened.

    >>> _kind(True), _kind(""), _kind({"text": [1.5]})
    ('true', '""', '{"text": [1.5]}')
    """
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."
