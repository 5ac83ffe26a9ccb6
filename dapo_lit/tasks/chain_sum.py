"""Sums of a few small numbers: a task on which a tiny policy on a CPU shows every behaviour that DAPO acts on.

A prompt is `7+4+9=`. A response may answer at once (`#20`), write the running sums first (`7+4=11;11+9=20;#20`), check
itself (`7+4=11;11+9=21;?7+4=11;11+9=20;?7+4=11;11+9=20;#20`), or never end. The answer is what follows the last `#`.
This file makes training and held-out problems and the seeded demonstrations for a base policy, which
dapo_lit.policy.base trains.
"""

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from dapo_lit.data.problem import Problem
from dapo_lit.seeds import named_generator
from dapo_lit.tasks.generated import ProblemSets


class Demonstration(NamedTuple):
    prompt: str
    response: str
    """The first turn, where there are several."""
    ends: bool
    """False: the last turn is cut off, no EOS follows."""
    then: tuple[tuple[str, str], ...] = ()
    """What follows the first turn, each with the EOS token before it: what an environment said, and the next turn."""


CHARACTERS = "0123456789+=;#?"
"""Every character of a prompt or a response."""

_STEP = re.compile(r"\d+\+\d+=\d+")
_SHARES = ("immediate", "running_sums", "checked", "rambling")
_FORMAT = 1
"""Increase it when `Mixture.stream` changes its output, so that cached base policies are rebuilt."""


@dataclass(frozen=True)
class Sums:
    """The range of the sums.

    >>> Sums(min_terms=2, max_terms=3).count()
    810
    """

    min_terms: int = 2
    max_terms: int = 8
    smallest: int = 1
    largest: int = 9

    def __post_init__(self) -> None:
        if not 2 <= self.min_terms <= self.max_terms:
            raise ValueError(f"a sum needs 2 <= min_terms <= max_terms, not {self.min_terms} and {self.max_terms}")
        if not 0 <= self.smallest <= self.largest:
            raise ValueError(f"terms need 0 <= smallest <= largest, not {self.smallest} and {self.largest}")

    def __str__(self) -> str:
        return f"sums of {self.min_terms} to {self.max_terms} terms from {self.smallest} to {self.largest}"

    def count(self) -> int:
        """The number of different sums, held-out ones included."""
        values = self.largest - self.smallest + 1
        return sum(values**terms for terms in range(self.min_terms, self.max_terms + 1))

    def draw(self, rng: random.Random) -> tuple[int, ...]:
        """Terms of one sum: first their number, then each term, uniformly."""
        terms = rng.randint(self.min_terms, self.max_terms)
        return tuple(rng.randint(self.smallest, self.largest) for _ in range(terms))


@dataclass(frozen=True)
class Mixture:
    """The kinds of demonstrations for a base policy. The four shares sum to 1."""

    immediate: float
    """Share that answers at once."""
    running_sums: float
    """Share that writes the running sums, then answers."""
    checked: float
    """Share that repeats the running sums until two passes agree, then answers."""
    rambling: float
    """Share that repeats the running sums forever; cut off at `rambling_chars`, without an EOS token."""
    immediate_wrong: float = 0.0
    """Share of the immediate answers that are off by 1 to `wrong_by`."""
    wrong_by: int = 2
    step_wrong: float = 0.0
    """Probability that one running sum is off by 1 or 2; the next steps carry on from it."""
    rambling_chars: int = 88
    """Above the response limit, so that the policy never learns to end them."""
    sums: Sums = field(default_factory=Sums)

    def __post_init__(self) -> None:
        shares = [getattr(self, name) for name in _SHARES]
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            raise ValueError(f"the shares {', '.join(_SHARES)} of a mixture must sum to 1, not {shares}")

    def recipe(self) -> dict[str, object]:
        """Everything except the seed that determines what `stream` yields; part of a base policy's cache key."""
        return {"task": "chain_sum", "format": _FORMAT, **asdict(self)}

    def stream(self, seed: int) -> Iterator[Demonstration]:
        """Endless demonstrations, determined by the seed, without held-out sums."""
        rng = named_generator("chain_sum", "demonstrations", seed)
        while True:
            terms = self.sums.draw(rng)
            if not is_held_out(terms):
                yield self.answered(terms, rng)

    def answered(self, terms: Sequence[int], rng: random.Random) -> Demonstration:
        """A demonstration of this sum."""
        (kind,) = rng.choices(_SHARES, [getattr(self, name) for name in _SHARES])
        response = _response(kind, terms, self, rng)
        ends = kind != "rambling" and len(response) <= self.rambling_chars
        return Demonstration(prompt_text(terms), response[: self.rambling_chars], ends)


def train_problems(num_problems: int, sums: Sums | None = None) -> list[Problem]:
    """Different sums in random order, none of them held out. Raises ValueError if there are too few sums."""
    sums = sums or Sums()
    # A tenth of the longer sums is held out; half of all sums leaves a margin, so that drawing stays fast.
    if num_problems > (most := sums.count() // 2):
        raise ValueError(
            f"{num_problems:,} training problems requested, but at most {most:,} (half of the {sums.count():,} {sums}) "
            f"can be drawn; set num_problems to {most:,} or less, or raise max_terms or largest"
        )
    rng = named_generator("chain_sum", "train", 0)
    chosen: dict[tuple[int, ...], None] = {}
    while len(chosen) < num_problems:
        terms = sums.draw(rng)
        if not is_held_out(terms):
            chosen[terms] = None
    return [_problem(terms) for terms in chosen]


def held_out_problems(num_problems: int, sums: Sums | None = None) -> list[Problem]:
    """Held-out sums of three terms or more, different as multisets, for evaluation.

    Raises ValueError if 100 times as many draws do not contain so many.
    """
    sums = sums or Sums()
    rng = named_generator("chain_sum", "held_out", 0)
    chosen: dict[tuple[int, ...], tuple[int, ...]] = {}
    for _ in range(1000 + 100 * num_problems):
        if len(chosen) == num_problems:
            break
        terms = sums.draw(rng)
        if is_held_out(terms):
            chosen.setdefault(tuple(sorted(terms)), terms)
    if len(chosen) < num_problems:
        raise ValueError(
            f"{num_problems:,} held-out problems requested, but {sums} gave only {len(chosen):,}; "
            "lower the number of held-out problems, or raise max_terms or largest"
        )
    return [_problem(terms) for terms in chosen.values()]


def is_held_out(terms: Sequence[int]) -> bool:
    """True for a tenth of the sums of three terms or more, whatever the order of the terms."""
    if len(terms) < 3:
        return False
    text = "+".join(map(str, sorted(terms)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % 10 == 0


def prompt_text(terms: Sequence[int]) -> str:
    """
    >>> prompt_text([7, 4, 9])
    '7+4+9='
    """
    return "+".join(map(str, terms)) + "="


def has_written_steps(text: str) -> bool:
    """True if a response contains a running sum; the mean over responses is `task/steps_frac`.

    >>> has_written_steps("7+4=11;11+9=20;#20"), has_written_steps("#20")
    (True, False)
    """
    return _STEP.search(text) is not None


def _problem(terms: tuple[int, ...]) -> Problem:
    prompt = prompt_text(terms)
    return Problem(f"chain_sum-{prompt[:-1]}", prompt, str(sum(terms)), {"num_terms": len(terms)})


def _response(kind: str, terms: Sequence[int], mixture: Mixture, rng: random.Random) -> str:
    if kind == "immediate":
        answer = sum(terms)
        if rng.random() < mixture.immediate_wrong:
            answer = _off(answer, mixture.wrong_by, rng)
        return f"#{answer}"
    text, result = _running_sums(terms, mixture.step_wrong, rng)
    if kind == "running_sums":
        return f"{text}#{result}"
    while len(text) < mixture.rambling_chars:
        again, repeated = _running_sums(terms, mixture.step_wrong, rng)
        text += "?" + again
        if kind == "checked" and repeated == result:
            return f"{text}#{result}"
        result = repeated
    return text if kind == "rambling" else f"{text}#{result}"


def _running_sums(terms: Sequence[int], step_wrong: float, rng: random.Random) -> tuple[str, int]:
    total, steps = terms[0], []
    for term in terms[1:]:
        result = total + term
        if rng.random() < step_wrong:
            result = _off(result, 2, rng)
        steps.append(f"{total}+{term}={result};")
        total = result
    return "".join(steps), total


def _off(value: int, by: int, rng: random.Random) -> int:
    """The value, off by 1 to `by` in either direction, never negative."""
    distance = rng.randint(1, by)
    return value - distance if rng.random() < 0.5 and value >= distance else value + distance


def problem_sets(num_train: int | None, num_heldout: int, options: Mapping[str, Any]) -> ProblemSets:
    sums = Sums(**options)
    train, heldout = train_problems(num_train or 20_000, sums), held_out_problems(num_heldout, sums)
    return ProblemSets(train, heldout, {"task/steps_frac": has_written_steps})


def mixture(shares: Mapping[str, Any], options: Mapping[str, Any]) -> Mixture:
    return Mixture(**shares, sums=Sums(**options))


def long_chains(share: float) -> Mapping[str, float]:
    return {"immediate": 1 - share, "running_sums": share, "checked": 0.0, "rambling": 0.0}
