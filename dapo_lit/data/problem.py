"""A problem with a checkable answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Problem:
    """One row of a task.

    >>> Problem(id="gsm8k-0", problem="What is 2 + 3?", answer="5").answer
    '5'
    """

    id: str
    """Stable across runs and processes; keys random numbers and results by question."""
    problem: str
    """The statement, without any prompt template."""
    answer: str
    """The reference answer as text; empty where a reward function needs none."""
    meta: Mapping[str, object] = field(default_factory=dict)
    """Further facts about the problem (number of terms, level, source)."""
    before: tuple[Mapping[str, str], ...] = ()
    """Chat messages before the statement, {role, content} each; of a data set whose prompts are chats."""
    instruction: tuple[str, str] = ("", "")
    """Text of the data set before and after the statement; in the prompt of a template that asks for nothing itself."""

    @property
    def stub(self) -> "Problem":
        """The problem as a checkpoint holds it: by its id. The rest is in the data, which a resumed run reads again."""
        return Problem(self.id, "", "")


def is_number(text: str) -> bool:
    """True for a text that Python reads as a number.

    >>> is_number("-2.5e3"), is_number("2 + 3")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True
