"""Reflection: checking, backtracking and rethinking in a response (DAPO section 4.4), measured by patterns.

The paper shows two passages that appear during training and gives no rate. Here a response reflects if one of the
configured patterns occurs in it. Words are a proxy: a policy can check itself without them, and write them in vain.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

EXCERPT_CHARS = 60
"""Of the text at each side of an occurrence."""


@dataclass(frozen=True)
class Occurrence:
    """Where a pattern occurred first."""

    pattern: str
    step: int
    problem_id: str
    correct: bool
    excerpt: str


@dataclass(frozen=True)
class Response:
    """What reflection is measured on."""

    step: int
    problem_id: str
    text: str
    correct: bool


class ReflectionPatterns:
    """Named regular expressions; letters match in either case, a space matches any white space.

    Raises ValueError, naming the pattern, for one that does not compile or that matches the empty text.

    >>> ReflectionPatterns({"wait": "however, wait"}).found("However,\\nwait a moment, let's rethink")
    ['wait']
    """

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = {}
        for name, pattern in patterns.items():
            try:
                compiled = re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE)
            except re.error as error:
                raise ValueError(f"reflection.patterns.{name}: not a regular expression ({error})") from None
            if compiled.match(""):
                raise ValueError(f"reflection.patterns.{name}: matches the empty text, so every response would reflect")
            self._patterns[name] = compiled

    def found(self, text: str) -> list[str]:
        """Names of the patterns that occur in `text`."""
        text = _plain(text)
        return [name for name, pattern in self._patterns.items() if pattern.search(text)]

    def reflects(self, text: str) -> bool:
        text = _plain(text)
        return any(pattern.search(text) for pattern in self._patterns.values())

    def frac(self, texts: Iterable[str]) -> float | None:
        """Share of responses that reflect; None without any."""
        found = [self.reflects(text) for text in texts]
        return fmean(found) if found else None

    def first_occurrences(self, responses: Sequence[Response]) -> list[Occurrence]:
        """For each pattern that occurs its first response (by step, then in the given order), with the words around."""
        firsts: dict[str, Occurrence] = {}
        for response in sorted(responses, key=lambda r: r.step):
            text = _plain(response.text)
            for name, pattern in self._patterns.items():
                if name not in firsts and (match := pattern.search(text)):
                    around = text[max(0, match.start() - EXCERPT_CHARS) : match.end() + EXCERPT_CHARS]
                    excerpt = " ".join(around.split())
                    firsts[name] = Occurrence(name, response.step, response.problem_id, response.correct, excerpt)
        return sorted(firsts.values(), key=lambda o: o.step)


def reflection_by_step(responses: Sequence[Response], patterns: ReflectionPatterns) -> list[dict[str, float | None]]:
    """A row a step: `step`, `responses`, and the share that reflects of all, of the correct and of the wrong ones."""
    rows: list[dict[str, float | None]] = []
    for step in sorted({r.step for r in responses}):
        here = [(r.correct, patterns.reflects(r.text)) for r in responses if r.step == step]
        rows.append(
            {
                "step": step,
                "responses": len(here),
                "reflection_frac": _mean(found for _, found in here),
                "reflection_frac_correct": _mean(found for correct, found in here if correct),
                "reflection_frac_wrong": _mean(found for correct, found in here if not correct),
            }
        )
    return rows


def _plain(text: str) -> str:
    return text.replace("\u2019", "'")  # typographic apostrophes


def _mean(values: Iterable[bool]) -> float | None:
    listed = list(values)
    return fmean(listed) if listed else None
