"""A position in a list of tokens, with a bound on how deep the reading may nest."""

from collections.abc import Iterator
from contextlib import contextmanager

from dapo_lit.answers.tokens import ParseError, Token

MAX_DEPTH = 40
"""Deeper nesting than this is no answer."""


class Cursor:
    def __init__(self, tokens: list[Token]):
        self.tokens = list(tokens)
        self.index = 0
        self._depth = 0

    def peek(self, offset: int = 0) -> Token | None:
        position = self.index + offset
        return self.tokens[position] if position < len(self.tokens) else None

    def at(self, *texts: str) -> bool:
        """Whether the next token is one of these signs or commands."""
        token = self.peek()
        return token is not None and token.kind in ("sign", "command") and token.text in texts

    def take(self) -> Token:
        token = self.peek()
        if token is None:
            raise ParseError("ends too early")
        self.index += 1
        return token

    def expect(self, text: str) -> None:
        if not self.at(text):
            raise ParseError(f"{text!r} is missing")
        self.index += 1

    @contextmanager
    def nested(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ParseError("nested too deep")
        yield
        self._depth -= 1
