r"""The answer of a response that follows a template: an `Answer:` line, a box, a hash sign, tags, or simply the last
number.

A number is read whole: `3.5e-7`, `1 000 000`, `2\sqrt{3}`, `3 million`, `12:30`. What is found need not be one number
(`numeric` refuses `12:30` and `3 million`), but it is never a part of one: of `10^6` neither 10 nor 6 is taken, of
`1.234.567` neither piece.

A template's answer is found in time linear in the length of the text. The search for a number may take its square
(`1,1,1,...`), so that callers give it the end of a text.
"""

import re

from math_answers.marks import block_at, line_at
from math_answers.number_words import MULTIPLES
from math_answers.quantity import ascii_digits

MAX_ANSWER_CHARS = 2000
"""Longer texts are not read as answers: no reference of the data sets has more than 200 characters."""
ANSWER_LINE_CHARS = 300
"""Characters at the end that `answer_line` and `number` look at; DAPO's scorer reads only the last 300 characters."""

# The rest of the line belongs to the first `Answer:` in it, as in DAPO's scorer.
# Marks that close behind the colon, as in `**Answer:**`, may be the end of their line.
_ANSWER_LINE = re.compile(r"Answer[*_`]*\s*[:：](?:[*_]+(?=\s))?\s*([^\n]+)", re.IGNORECASE)
_MINERVA = re.compile(
    r"(?:the\s+)?final\s+answer\s+is:?\s*(?P<answer>.+?)\.?\s*I\s+hope\s+it\s+is\s+correct\b.*",
    re.IGNORECASE | re.DOTALL,
)
_OPENED, _CLOSED = "<answer>", "</answer>"
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_MULTIPLE = rf"(?:[ ](?:{'|'.join(MULTIPLES)})\b)"
_GROUP = r"\{(?:[^{}]|\{[^{}]{0,100}\}){0,200}\}"
r"""A group, which may hold groups: of `\frac{\sqrt{3}}{2}` the 2 is a part."""
_COMMAND = rf"\\(?:[dtc]?frac|sqrt|binom)(?:\[[^\[\]]{{0,20}}\])?(?:\s*{_GROUP}|[0-9])+"
_NUMBER = re.compile(
    rf"""
    (?<![A-Za-z0-9_.^])(?<![_^]\{{)                        # not in a name, a decimal or a power
    (?:(?:[-\u2212]|(?<![0-9][ ])–)?(?:\s?[$€£¥₹]\s?)?-?)  # sign and currency
    (?:
        [0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?![0-9])                                # 2020-01-05
      | [0-9]{{1,3}}(?:[ \u00a0\u2009\u202f][0-9]{{3}})+(?![0-9/])(?:\.[0-9]+)?  # 1 000 000
      | [0-9]{{1,3}}(?:(?:[ ]?\{{[ ]?,[ ]?\}}[ ]?|,?\\[,!][ ]?)[0-9]{{3}})+(?![0-9])  # 1{{,}}000
      | [0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9]|,[0-9])(?:\.[0-9]+)?                # 1,000.5
      | (?=[0-9,]*,[0-9]{{3}}(?![0-9]))[0-9]+(?:,[0-9]+)+                        # 1,234,56: no number
      | [0-9]+[ ][0-9]+/[0-9]+                                                   # 1 1/2
      | [0-9]+(?:[.:'_/][0-9]+)+(?:\.\.\.|…)?                                    # 3.14, 3/4, 12:30, 1.234.567
      | [0-9]+,[0-9]{{1,2}}(?![0-9])                                             # 3,5
      | [0-9]+[ ]?{_COMMAND}                                                     # 2\sqrt{{3}}
      | {_COMMAND}
      | [0-9]*[½¼¾⅐-⅞]
      | [0-9]+
      | \.[0-9]+
    )
    (?: [eE][-+]?[0-9]+(?![0-9A-Za-z])
      | \s?(?:\\times|\\cdot|[*x×·])\s?10\s?\^\s?(?:\{{[-+\u2212]?[0-9]+\}}|[-+\u2212]?[0-9]+)
      | \s?\^\s?(?:{_GROUP}|-?[0-9]+)
      | [⁰¹²³⁴⁵⁶⁷⁸⁹⁻₀-₉]+
      | (?:\\pi|\\sqrt|[π√])\w*
      | [xyzni](?![A-Za-z])
    )*
    {_MULTIPLE}*
    (?:\s?\\?%|\s?[€£¥₹₩₽¢])?
    """,
    re.VERBOSE,
)


def extract_answer_line(text: str) -> str | None:
    """The last `Answer: ...` of the last 300 characters, as DAPO's scorer finds it, or a formula on its own lines.

    Of Minerva's sentence, which follows `Final Answer:`, it is what the sentence says.
    """
    tail = text[-ANSWER_LINE_CHARS:]
    markers = list(_ANSWER_LINE.finditer(tail))
    if not markers:
        return None
    line = line_at(tail, markers[-1].start(1))
    minerva = _MINERVA.fullmatch(line)
    return minerva["answer"] if minerva else line


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


def extract_tags(text: str) -> str | None:
    r"""The content of the last closed pair of tags, or of the box in it.

    >>> extract_tags(r"<think>6 * 7</think> <answer> $\boxed{42}$ </answer>"), extract_tags("<answer>42")
    ('42', None)
    """
    found = find_tags(text)
    return (extract_boxed(found[1]) or found[1].strip()) if found else None


def find_tags(text: str) -> tuple[int, str] | None:
    """Where the last closed pair of tags ends, and its content."""
    end = text.rfind(_CLOSED)
    start = text.rfind(_OPENED, 0, end) if end >= 0 else -1
    return (end, text[start + len(_OPENED) : end]) if start >= 0 else None


def extract_number(text: str) -> str | None:
    """The last number of the last 300 characters, with its sign, currency, fraction and percent.

    >>> extract_number("2 + 3 = 5 apples")
    '5'
    """
    return last_number(text[-ANSWER_LINE_CHARS:])


def last_number(text: str) -> str | None:
    """The last number, with its sign, currency, fraction and percent.

    >>> last_number("from 1,200 to 3.5e-7"), last_number("It is 10^6"), last_number("12-25")
    ('3.5e-7', '10^6', '25')
    """
    numbers = list(_NUMBER.finditer(ascii_digits(text)))
    return numbers[-1].group().strip() if numbers else None


def first_number(text: str) -> str | None:
    """The first number, read like the last one."""
    found = _NUMBER.search(ascii_digits(text))
    return found.group().strip() if found else None
