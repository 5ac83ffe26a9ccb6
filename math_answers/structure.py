"""The kinds of answers: a scalar, words, a list, a tuple, a set, an interval, a relation, a ratio, a range, a choice,
or raw text.
"""

import re
from dataclasses import dataclass

from math_answers.expression import Node


@dataclass(frozen=True, slots=True)
class Scalar:
    node: Node
    unit: str = ""
    percent: bool = False
    word: str = ""
    """The letters, if it consists of letters only: `odd` may be a word or a product."""


@dataclass(frozen=True, slots=True)
class Words:
    text: str
    """Case folded, without punctuation and articles."""


@dataclass(frozen=True, slots=True)
class Several:
    items: "tuple[Answer, ...]"
    brackets: str
    r"""Opening and closing: `()`, `[]`, `[)`, `(]`, `{}`, `<>`; empty for a bare list; `{|}` for members and condition
    of `\{x^2 : x > 2\}`."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain of sides, `a < x <= b`."""

    sides: "tuple[Answer, ...]"
    signs: tuple[str, ...]
    """One fewer than sides, each one of `= < > le ge ne approx equiv in notin`."""


@dataclass(frozen=True, slots=True)
class Combined:
    """Sets joined: `cup`, `cap` or `setminus`."""

    operator: str
    parts: "tuple[Answer, ...]"


@dataclass(frozen=True, slots=True)
class Reals:
    """All real numbers."""


@dataclass(frozen=True, slots=True)
class Ratio:
    parts: "tuple[Answer, ...]"


@dataclass(frozen=True, slots=True)
class Range:
    """`10–20`, `10 to 20 cm`: neither a number nor the interval from one to the other."""

    ends: "tuple[Answer, Answer]"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A letter of a multiple choice with its text, `(B) 12`."""

    letter: str
    readings: "tuple[Answer, ...]"


@dataclass(frozen=True, slots=True)
class Raw:
    """Text outside the grammar; equals only the same text."""

    text: str
    form: tuple[str, ...] = ()
    r"""What is compared: its tokens, with arguments of `^` and `_` as TeX reads them; empty without text."""


Answer = Scalar | Words | Several | Relation | Combined | Reals | Ratio | Range | Chosen | Raw

_SAME_WORDS = {"dne": "does not exist", "no solutions": "no solution", "no real solutions": "no real solution"}


def words_of(text: str) -> Words:
    kept = [word for word in text.split() if word not in ("a", "an", "the")]
    plain = " ".join(re.sub(r"[^\w\s+\-*/=<>%]", " ", " ".join(kept).casefold()).split())
    return Words(_SAME_WORDS.get(plain, plain))


def parts_of(answer: Answer) -> "tuple[Answer, ...]":
    """The parts of a list, a relation, a set, a ratio or a range; the readings of a choice."""
    match answer:
        case Several(parts) | Relation(parts) | Combined(_, parts) | Ratio(parts) | Range(parts) | Chosen(_, parts):
            return parts
        case _:
            return ()
