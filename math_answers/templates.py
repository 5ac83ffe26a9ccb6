"""The answer of a response that follows a template: an `Answer:` line, a box, a hash sign, or simply the last number.

Every function is linear in the length of the text.
"""

import re

from math_answers.marks import block_at, line_at
from math_answers.number_in_text import last_number
from math_answers.parse import MAX_ANSWER_CHARS

ANSWER_LINE_CHARS = 300
"""Characters at the end that `answer_line` and `number` look at; DAPO's scorer reads only the last 300 characters."""

# The rest of the line belongs to the first `Answer:` in it, as in DAPO's scorer.
_ANSWER_LINE = re.compile(r"Answer[*_`]*\s*[:：]\s*([^\n]+)", re.IGNORECASE)
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def extract_answer_line(text: str) -> str | None:
    """The last `Answer: ...` of the last 300 characters, as DAPO's scorer finds it, or a formula on its own lines."""
    tail = text[-ANSWER_LINE_CHARS:]
    markers = list(_ANSWER_LINE.finditer(tail))
    return line_at(tail, markers[-1].start(1)) if markers else None


def extract_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` (or `\fbox{...}`) whose braces balance; escaped braces do not count."""
    boxes = find_boxes(text)
    return text[slice(*boxes[-1])].strip() if boxes else None


def find_boxes(text: str, last: int = 8) -> list[tuple[int, int]]:
    r"""Start and end of the contents of the balanced boxes among the `last` ones of `text`, in order of their start."""
    starts: list[int] = []
    end = len(text)
    while len(starts) < last:
        position = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
        if position < 0:
            break
        opening = _BOX.match(text, position, position + 64)
        if opening:
            starts.append(opening.end())
        end = position
    spans = []
    for start in reversed(starts):
        stop = closing_brace(text, start)
        if stop is not None:
            spans.append((start, stop))
    return spans


def closing_brace(text: str, start: int) -> int | None:
    """Position where the brace opened just before `start` closes, None if not within 2,000 characters."""
    depth = 1
    for brace in _BRACES.finditer(text, start, start + MAX_ANSWER_CHARS + 1):
        if brace.group() == "{":
            depth += 1
        elif brace.group() == "}":
            depth -= 1
            if depth == 0:
                return brace.start()
    return None


def extract_hash(text: str) -> str | None:
    """The rest of the line after the last `#`, or the formula on the lines that follow."""
    _, mark, after = text.rpartition("#")
    if not mark:
        return None
    first, _, following = after.partition("\n")
    return first.strip() or block_at(following)


def extract_number(text: str) -> str | None:
    """The last number of the last 300 characters, with its sign, currency, fraction and percent.

    >>> extract_number("2 + 3 = 5 apples")
    '5'
    """
    return last_number(text[-ANSWER_LINE_CHARS:])
