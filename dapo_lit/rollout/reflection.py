"""Reflection: checking, backtracking and rethinking in a response (DAPO section 4.4), measured by patterns.

The paper shows two passages that appear during training and gives no rate. Here a response reflects if one of the
configured patterns occurs in it. Keywords are only a proxy: a policy can verify its work without them, or use them
without verifying anything.
"""

import re
from collections.abc import Iterable, Mapping
from statistics import fmean


class ReflectionPatterns:
    """Named regular expressions; letters match in either case, a space matches any white space.

    Raises ValueError, naming the pattern, for one that does not compile or that matches the empty text.

    >>> ReflectionPatterns({"wait": "however, wait"}).reflects("However,\\nwait a moment, let's rethink")
    True
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

    def reflects(self, text: str) -> bool:
        text = _plain(text)
        return any(pattern.search(text) for pattern in self._patterns.values())

    def frac(self, texts: Iterable[str]) -> float | None:
        """Share of responses that reflect; None without any."""
        found = [self.reflects(text) for text in texts]
        return fmean(found) if found else None


def _plain(text: str) -> str:
    return text.replace("\u2019", "'")  # typographic apostrophes
