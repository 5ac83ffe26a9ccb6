"""What a part of an algorithm says of itself: a loss, an estimator of advantages, a penalty, a correction.

A part is a plain function. Its parameters name what it reads (switches/parts.py says what there is), and their defaults
are its source's values. What a signature cannot say is in a decorator above it, for the functions of this room and for
those in a user's file alike:

    @Needs(group=2, rewards=(0, inf), options={"scale": (0, 10)}, source="arXiv 2602.02710")
    def maxrl(rewards, *, epsilon, scale=1.0): ...

Checks, warnings of settings that nothing reads, and the page to play with follow from the two.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar

Part = TypeVar("Part", bound=Callable[..., Any])


@dataclass(frozen=True)
class Needs:
    """What a part needs of a run, and which settings it does not go with."""

    group: int = 1
    """Completions of a prompt, at least."""
    rewards: tuple[float, float] = (-inf, inf)
    """The range of every reward, after shaping."""
    both_signs: bool = False
    """Wrong answers have negative rewards, right ones positive."""
    options: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Ranges of its options, both ends included; their types are those of its annotations."""
    whole_minibatch: bool = False
    """A token's value depends on other tokens of its mini-batch."""
    own_samples: bool = False
    """It has no ratio: the samples must be those of the policy that is trained."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Setting below `algorithm`, as `techniques.token_level_loss=true` -> why the two do not go together."""
    warns: Mapping[str, str] = field(default_factory=dict)
    """The same, of settings that run and mean something else than they say."""
    reads: tuple[str, ...] = ()
    """Of a loss that takes (tokens, bounds): the bounds that it reads, as a signature would name them."""
    on_page: bool = False
    """The page to play with (replays/step.html) has its arithmetic."""
    source: str = ""
    """Paper and equation, for messages."""

    def __call__(self, part: Part) -> Part:
        part.__dict__["needs"] = self
        return part


def needs_of(part: Callable[..., Any]) -> Needs:
    """What a function declares, which may be nothing."""
    found = getattr(part, "needs", None)
    return found if isinstance(found, Needs) else Needs()
