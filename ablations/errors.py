"""Errors that users can fix. A command prints one as a line, without a traceback, and exits with 2.

Errors of one room (a config, a data set, a study) are defined there; here are those that several rooms raise.
"""

import difflib
from collections.abc import Iterable

from ablations.screen import printable

LONGEST = 10_000
"""Characters of a message."""


class UserError(Exception):
    """The message says what is wrong, in which file or key, and what to do."""

    def __str__(self) -> str:  # a message may quote a file of someone else's, which may be one word
        text = printable(super().__str__()[: 2 * LONGEST])
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


class DataError(UserError, ValueError):
    """A data file that cannot be used: which file and line, what is wrong, what to do."""


class DamagedError(UserError):
    """A file of a run cannot be read as what it should be: torn, altered, of another kind, or not safe to load."""


class HeldError(UserError):
    """Another process is running this run."""


MOST_FAULTS = 3
"""Faults that a line names; the others are counted."""


def one_line(faults: Iterable[str]) -> str:
    """Several faults as one line.

    >>> one_line(["a: missing", "a: missing", "b: missing", "c: missing", "d: missing"])
    'a: missing; b: missing; c: missing; and 1 more'
    """
    found = list(dict.fromkeys(faults))
    more = [f"and {len(found) - MOST_FAULTS} more"] if len(found) > MOST_FAULTS else []
    return "; ".join([*found[:MOST_FAULTS], *more])


def suggestion(word: str, known: Iterable[str], form: str = "{}") -> str:
    """`did you mean X?` for the nearest known word, written as `form` says; all known words where none is near.

    >>> suggestion("sede", ["seed", "task"], "+{}"), suggestion("lr", ["seed", "task"])
    ('did you mean +seed?', 'known: seed, task')
    """
    words = list(known)
    near = nearest(word, words)
    return f"did you mean {form.format(near)}?" if near else f"known: {', '.join(words) or 'none'}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is spelled most alike, whatever its case; None if none is near."""
    lowered = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), lowered, n=1)
    return lowered[near[0]] if near else None
