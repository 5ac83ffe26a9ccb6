r"""Find the final answer in a response.

Five ways, one per prompt template; a template that asks for one and a parser of another never agree:

| extraction | reads | asked for by |
|---|---|---|
| `answer_line` | the last `Answer: ...` within the last 300 characters | DAPO's template and scorer (`math_dapo`) |
| `boxed` | the content of the last balanced `\boxed{...}` | MATH-style templates |
| `hash` | the rest of the line after the last `#` | GSM8K (`#### 72`), chain_sum (`#20`) |
| `number` | the last number of the text | nothing (four_sums; lm-evaluation-harness's `flexible-extract`) |
| `auto` | whatever marks an answer: see `free_text.py` | scoring texts of unknown origin |

Every function is linear in the length of the text, whatever the text.
"""

import re
from typing import Literal, assert_never

from dapo_lit.rewards.numbers import ascii_digits

Extraction = Literal["answer_line", "boxed", "hash", "number", "auto"]

ANSWER_LINE_CHARS = 300
"""How far back `answer_line` and `number` look: DAPO's scorer reads the last 300 characters alone."""
MAX_ANSWER_CHARS = 2000
"""Longer answers are taken as none: no reference of the data sets has more than 200."""

_ANSWER_LINE = re.compile(r"Answer\s*:\s*([^\n]+)", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.])(?:[-\u2212]?(?:\s?[$€£¥₹]\s?)?-?)(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+(?:,[0-9]{1,2}(?![0-9]))?)"
    r"(?:\.[0-9]+)?(?:/[0-9]+)?(?:\s?\\?%)?"
    r"|(?<![A-Za-z0-9_.])-?\.[0-9]+"
)
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def extract(text: str, extraction: Extraction) -> str | None:
    r"""The final answer of `text`, or None if there is none (or one of over 2,000 characters).

    >>> extract("3+4=7\nAnswer: $7$", "answer_line")
    '$7$'
    >>> extract(r"so \boxed{\frac{1}{2}}.", "boxed")
    '\\frac{1}{2}'
    >>> extract("7+4=11;11+9=20;#20", "hash")
    '20'
    """
    match extraction:
        case "answer_line":
            answer = extract_answer_line(text)
        case "boxed":
            answer = extract_boxed(text)
        case "hash":
            answer = extract_hash(text)
        case "number":
            answer = extract_number(text)
        case "auto":
            from dapo_lit.rewards.free_text import find_answer  # it builds on this module

            answer = find_answer(text)
        case _:
            assert_never(extraction)
    return answer if answer and len(answer) <= MAX_ANSWER_CHARS else None


def extract_answer_line(text: str) -> str | None:
    """The last `Answer: ...` of the last 300 characters, as DAPO's scorer finds it."""
    found = _ANSWER_LINE.findall(text[-ANSWER_LINE_CHARS:])
    return found[-1].strip() if found else None


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
    """Where the brace opened just before `start` closes, None if not within 2,000 characters."""
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
    """The rest of the line after the last `#`."""
    _, mark, after = text.rpartition("#")
    return after.split("\n", 1)[0].strip() if mark else None


def extract_number(text: str) -> str | None:
    """The last number of the last 300 characters, with its sign, currency, fraction and percent.

    >>> extract_number("2 + 3 = 5 apples")
    '5'
    """
    return last_number(text[-ANSWER_LINE_CHARS:])


def last_number(text: str) -> str | None:
    numbers = _NUMBER.findall(ascii_digits(text))
    return numbers[-1].strip() if numbers else None


def first_number(text: str) -> str | None:
    found = _NUMBER.search(ascii_digits(text))
    return found.group().strip() if found else None
