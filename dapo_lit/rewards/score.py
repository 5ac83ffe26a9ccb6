"""The verdict of a reward on one completion."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Score:
    """The verdict on one completion.

    >>> Score(correct=True, value=1.0).value
    1.0
    """

    correct: bool
    """Raw correctness: what dynamic sampling filters on (DAPO Eq. 11), never the shaped value."""
    value: float
    """The reward before any length shaping (DAPO Eq. 7: +1 or -1)."""
    answer: str | None = None
    """The answer that was extracted, None if none was found."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named addends of a weighted reward, empty for a plain one."""
    timed_out: bool = False
    """The verifier reached its deadline: there is no verdict."""
    error: str | None = None
    """The verifier's error: there is no verdict. None if it did not fail."""

    @property
    def missing(self) -> bool:
        """True if there is no verdict; `correct` and `value` then mean nothing."""
        return self.timed_out or self.error is not None
