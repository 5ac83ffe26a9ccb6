"""Whether a response can be right at all: every reference answer is given as a response, extracted and compared.

A whole solution in the column of answers, a reference of several lines under `answer_line`, a number in words under
`numeric`: each is a question that no response answers, and the accuracy of a run has a ceiling that nothing shows.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from math_answers.extraction import Extraction, extract, reference_answer
from math_answers.forms import OWN
from math_answers.rules import Rule, check_reference, decide
from math_answers.templates import extract_boxed, extract_tags, first_number, last_number

FORMATS: dict[Extraction, str] = {extraction: form.written for extraction, form in OWN.items()}
"""A response that gives its answer as the task asks for it."""
READ_AGAIN = 1_000
"""Unreachable references that are read in other ways, so that a large file of solutions costs no more than a small."""
SENT = 256
"""Pairs that are sent to workers, at a millisecond each; the rest is taken for right."""
Equivalent = Callable[[Sequence[tuple[str, str]]], list[bool]]


def _after_hashes(reference: str) -> str | None:
    before, mark, after = reference.rpartition("####")
    return after.strip() or None if mark and before.strip() else None


def _last_number(reference: str) -> str | None:
    """None for several numbers that are no sentence: of the point (3, -1) neither is the answer."""
    from math_answers.free_text import is_prose  # where no reference can be reached as it is: rare

    last = last_number(reference)
    return last if last == first_number(reference) or "\n" in reference or is_prose(reference) else None


def _in_list(reference: str) -> str | None:
    """The entry of a JSON list of one text, as Skywork-OR1 has its answers; `[5]` may be an interval or a matrix."""
    if not re.fullmatch(r'\[\s*".{1,1000}"\s*\]', reference, re.DOTALL):
        return None
    try:
        entries = json.loads(reference)
    except ValueError:
        return None
    return entries[0].strip() or None if len(entries) == 1 and isinstance(entries[0], str) else None


def _content(reference: str) -> str | None:
    """What a right response gives of a reference that has a form around its answer; None: it is bare."""
    return _after_hashes(reference) or extract_boxed(reference) or _in_list(reference) or extract_tags(reference)


READINGS: Mapping[str, Callable[[str], str | None]] = {
    "what follows its last ####": _after_hashes,
    "its last box": extract_boxed,
    "the entry of its list": _in_list,
    "what is in its tags": extract_tags,
    "its last number": _last_number,
}
"""Where the answer of a reference that is a whole solution may be, the surest first."""


@dataclass(frozen=True)
class Unreachable:
    """A reference answer that counts as wrong when a response gives it."""

    index: int
    """Its place among the references."""
    read: str | None
    """What is found in that response, or in a box of the reference's own."""
    fault: str | None = None
    """Why the rule cannot use the reference at all."""


def unreachable(
    references: Sequence[str], rule: Rule, extraction: Extraction, equivalent: Equivalent | None = None
) -> list[Unreachable]:
    """The references that are wrong when a response gives them in the task's format.

    A reference with a box, `####`, tags or a JSON list around its answer is one too where the whole is another answer:
    the response that is right gives what is in the box.

    equivalent: decides the first pairs that need the symbolic comparison. They are few, as most references come back
        from the extraction as they went in; None: they are taken for right.
    """
    found: list[Unreachable] = []
    undecided: dict[int, tuple[str, str]] = {}
    for index, reference in enumerate(references):
        wanted = reference_answer(reference, extraction)
        if fault := check_reference(wanted, rule):
            found.append(Unreachable(index, None, fault))
            continue
        read = extract(FORMATS[extraction].format(reference), extraction)
        equal = decide(read, wanted, rule) if read is not None else False
        if equal and (content := _content(wanted)):
            read = content
            equal = decide(read, wanted, rule) if read is not None else False
        if equal is None and read is not None:
            undecided[index] = read, wanted
        elif not equal:
            found.append(Unreachable(index, read))
    sent = [*undecided.items()][:SENT]
    if sent and equivalent is not None:
        verdicts = zip(sent, equivalent([pair for _, pair in sent]), strict=True)
        found += [Unreachable(index, read) for (index, (read, _)), equal in verdicts if not equal]
    return sorted(found, key=lambda each: each.index)


def other_reading(references: Sequence[str], rule: Rule, extraction: Extraction) -> tuple[str, int, int] | None:
    """The part of these references that makes most of them reachable: its name, how many, and of how many tried."""
    tried = references[:READ_AGAIN]
    best: tuple[str, int, int] | None = None
    for name, reading in READINGS.items():
        parts = [part for reference in tried if (part := reading(reference))]
        right = len(parts) - len(unreachable(parts, rule, extraction))
        if right > (best[1] if best else 0):
            best = name, right, len(tried)
    return best
