"""The sums of chain_sum with a second try: an environment says `wrong` to a wrong answer, and the policy may try again.

A response to `7+4+9=` may be `#21`, to which the environment says `wrong`, then `#21` again, `#20`, or the running sums
(`7+4=11;11+9=20;#20`). So there is more to learn than to answer: that an answer which was wrong is wrong the second
time too, and that written steps are worth their tokens.

This file makes the seeded demonstrations for a base policy; problems, and how a turn answers, are those of chain_sum.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dapo_lit.environments.tools import WRONG
from dapo_lit.seeds import named_generator
from dapo_lit.tasks import chain_sum
from dapo_lit.tasks.chain_sum import Demonstration, is_held_out

CHARACTERS = chain_sum.CHARACTERS + WRONG
"""Every character of a prompt, a response or the environment."""

_FORMAT = 1
"""Increase it when `Mixture.stream` changes its output, so that cached base policies are rebuilt."""


@dataclass(frozen=True)
class Mixture:
    """The demonstrations for a base policy."""

    first: chain_sum.Mixture
    """How a first turn answers, and which sums there are."""
    again: chain_sum.Mixture
    """How a turn answers after `wrong`, unless it repeats the answer before it."""
    repeats: float
    """Probability that a turn after `wrong` is the turn before it once more."""
    most_tries: int = 4
    """Turns, if all of them are wrong."""

    def __post_init__(self) -> None:
        if not 0 <= self.repeats <= 1:
            raise ValueError(f"repeats is a probability between 0 and 1, not {self.repeats}")
        if self.most_tries < 1:
            raise ValueError(f"most_tries is at least 1, not {self.most_tries}")

    def recipe(self) -> dict[str, object]:
        """Everything except the seed that determines what `stream` yields; part of a base policy's cache key."""
        return {"task": "second_try", "format": _FORMAT, **asdict(self)}

    def stream(self, seed: int) -> Iterator[Demonstration]:
        """Endless demonstrations, determined by the seed, without held-out sums."""
        rng = named_generator("second_try", "demonstrations", seed)
        while True:
            terms = self.first.sums.draw(rng)
            if not is_held_out(terms):
                yield self._demonstration(terms, rng)

    def _demonstration(self, terms: Sequence[int], rng: random.Random) -> Demonstration:
        first = last = self.first.answered(terms, rng)
        then: list[tuple[str, str]] = []
        # A turn without an end is the last one, and the environment has nothing to say to a right answer.
        while last.ends and not _is_right(last.response, terms) and len(then) + 1 < self.most_tries:
            if rng.random() >= self.repeats:
                last = self.again.answered(terms, rng)
            then.append((WRONG, last.response))
        return Demonstration(first.prompt, first.response, last.ends, tuple(then))


def _is_right(response: str, terms: Sequence[int]) -> bool:
    return response.rpartition("#")[2] == str(sum(terms))


problem_sets = chain_sum.problem_sets


def mixture(shares: Mapping[str, Any], options: Mapping[str, Any]) -> Mixture:
    own = {turn: chain_sum.mixture(share, options) for turn, share in shares.items() if turn in ("first", "again")}
    return Mixture(**{**shares, **own})


def long_chains(share: float) -> Mapping[str, float]:
    raise ValueError("there are no long chains to give a share to")
