r"""The paper's answer transformation (DAPO 3.5, appendix A): a problem rewritten so that its answer is an integer.

A model writes four sections: the format of the answer (`k - m\sqrt{n}`), the rewritten statement (asking for
k + m + n), its solution, and the integer. This file has the text functions: the question to the model, the parser of
its text, and the checks that reject a rewriting before it is solved. Sampling is in transformation.py.
"""

import re
from dataclasses import dataclass
from typing import Literal

from dapo_lit.data.problem import Problem

HEADINGS = ("ANSWER FORMAT", "REWRITTEN STATEMENT", "SOLUTION", "INTEGER ANSWER")
"""The four steps, in their order."""
Reason = Literal["unfinished", "malformed", "not_integer", "unchanged", "quotes_answer", "inconsistent"]
"""Why a problem is rejected: the text was cut off, lacks a section, has no integer answer, repeats the old problem,
reveals its answer, or its solutions do not agree with the integer."""

_HEADING = re.compile(rf"^[#*<\s]*(?:\d\.\s*)?({'|'.join(HEADINGS)})[>*:#\s]*$", re.MULTILINE)
_INTEGER = re.compile(r"[-\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)")
_MAX_DIGITS = 30


class RejectedError(ValueError):
    """A rewriting that cannot be used."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason


@dataclass(frozen=True)
class Rewriting:
    """The four sections of one rewriting."""

    answer_format: str
    statement: str
    solution: str
    answer: int


def question(problem: Problem) -> str:
    """The text for the prompt template: statement and answer.

    >>> question(Problem("a", "What is 1/2 + 1/3?", "5/6"))
    'Problem:\\nWhat is 1/2 + 1/3?\\n\\nAnswer:\\n5/6'
    """
    return f"Problem:\n{problem.problem}\n\nAnswer:\n{problem.answer}"


def integer(text: str) -> int | None:
    r"""`text` as an integer, ignoring dollar signs, a box and commas; None if it is anything else.

    >>> integer("$1,080$."), integer(r"\boxed{-3}"), integer("11 - 2\\sqrt{6}")
    (1080, -3, None)
    """
    bare = text.strip().rstrip(".").strip("$ ")
    boxed = re.fullmatch(r"\\boxed\s*\{(.*)\}", bare)
    bare = (boxed[1] if boxed else bare).strip("$ ").removeprefix("Answer:").strip("$ ")
    if len(bare) > 2 * _MAX_DIGITS or not _INTEGER.fullmatch(bare):
        return None
    return int(bare.replace(",", "").replace("\u2212", "-"))


def parse_rewriting(text: str) -> Rewriting:
    """The sections of a model's text; text before the first heading is ignored.

    Raises RejectedError: `malformed` if a section is missing, empty, repeated or out of order; `not_integer` if the
    last one is not an integer.
    """
    found = list(_HEADING.finditer(text))
    names = [match[1].upper() for match in found]
    if names != list(HEADINGS):
        missing = [name for name in HEADINGS if name not in names]
        detail = f"no section {missing[0]}" if missing else f"the sections are {', '.join(names)}"
        raise RejectedError("malformed", detail)
    ends = [match.start() for match in found[1:]] + [len(text)]
    sections = [text[match.end() : end].strip() for match, end in zip(found, ends, strict=True)]
    for name, section in zip(HEADINGS, sections, strict=True):
        if not section:
            raise RejectedError("malformed", f"the section {name} is empty")
    answer = integer(sections[3])
    if answer is None:
        raise RejectedError("not_integer", f"the answer is {sections[3][:80]!r}")
    answer_format, statement, solution, _ = sections
    return Rewriting(answer_format, statement, solution, answer)


def check_rewriting(original: Problem, rewriting: Rewriting) -> None:
    """RejectedError: `unchanged` if the statement is the original's, `quotes_answer` if it contains the old answer.

    Answers of fewer than four characters are not searched for: `1/2` may occur in any statement.
    """
    new, old, answer = (_squeezed(text) for text in (rewriting.statement, original.problem, original.answer))
    if new == old:
        raise RejectedError("unchanged", "the rewritten statement is the original one")
    if len(answer) >= 4 and answer in new and answer not in old:
        raise RejectedError("quotes_answer", f"the rewritten statement gives the answer {original.answer[:80]!r} away")


def _squeezed(text: str) -> str:
    return re.sub(r"[\s$]|\\[,;!]", "", text).replace("dfrac", "frac").lower()
