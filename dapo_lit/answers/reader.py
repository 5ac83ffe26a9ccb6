"""A position in a list of tokens, and the interface through which the rules of the grammar call one another.

`grammar.Grammar` implements the abstract methods. The rules for letters (`calls.py`) and for LaTeX commands
(`commands.py`) know only this interface.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from dapo_lit.answers.expression import Node
from dapo_lit.answers.tokens import ParseError, Token

MAX_NESTING = 40
"""More nested brackets, arguments and signs than this are no answer."""


class Reader(ABC):
    def __init__(self, tokens: list[Token]):
        self.tokens = list(tokens)
        self.index = 0
        self._nesting = 0

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

    def take_if(self, *texts: str) -> bool:
        """Whether the next token was one of these, which is then behind the reader."""
        found = self.at(*texts)
        self.index += found
        return found

    def expect(self, text: str) -> None:
        if not self.take_if(text):
            raise ParseError(f"{text!r} is missing")

    @contextmanager
    def nested(self) -> Iterator[None]:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise ParseError("nested too deep")
        yield
        self._nesting -= 1

    @abstractmethod
    def expression(self) -> Node:
        """A sum of terms."""

    @abstractmethod
    def term(self) -> Node:
        """A product of factors."""

    @abstractmethod
    def factor(self) -> Node:
        """An atom with its sign, powers, subscripts and factorials."""

    @abstractmethod
    def atom(self) -> Node:
        """A number, a letter, a command with its arguments, or something in brackets."""

    @abstractmethod
    def argument(self, split: bool) -> Node:
        r"""What a command applies to: braces, or one token (with `split` one digit of a number, as in `\frac12`)."""

    @abstractmethod
    def starts_factor(self, previous: Node) -> bool:
        """Whether the next token starts a factor that is multiplied without a sign."""
