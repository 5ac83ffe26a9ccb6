"""Calculations that are too long for a small policy's head, with a calculator to ask (docs/turns.md).

A prompt is `37*48+51=`. A response may answer at once (`#1826`), which is nearly always wrong, or end its turn with a
calculation (`37*48+51=`): then the calculator says `1827`, and the next turn may answer `#1827` or ask for more. Asking
is a skill with parts: the calculation must be copied rightly, products come first where it is done in steps, the answer
must be the calculator's, and asking must end.

This file makes problems and the seeded demonstrations for a base policy. What the calculator says in them is said by
the calculator itself; nothing else here computes a result.
"""

import hashlib
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dapo_lit.data.problem import Problem
from dapo_lit.environments.tools import ERROR, calculated
from dapo_lit.seeds import named_generator
from dapo_lit.tasks.chain_sum import Demonstration
from dapo_lit.tasks.generated import ProblemSets

CHARACTERS = "0123456789+-*/=#" + "".join(sorted(set(ERROR)))
"""Every character of a prompt, a response or an answer of the calculator."""

_SHARES = ("immediate", "called", "in_steps", "asking_on")
_PARTS = re.compile(r"\d+|[+*]")
_FORMAT = 1
"""Increase it when `Mixture.stream` changes its output, so that cached base policies are rebuilt."""


@dataclass(frozen=True)
class Calculations:
    """The range of the calculations: numbers with `+` or `*` between them, and at least one `*`."""

    min_numbers: int = 2
    max_numbers: int = 3
    smallest: int = 12
    largest: int = 99

    def __post_init__(self) -> None:
        if not 2 <= self.min_numbers <= self.max_numbers:
            raise ValueError(
                f"a calculation needs 2 <= min_numbers <= max_numbers, not {self.min_numbers} and {self.max_numbers}"
            )
        if not 0 <= self.smallest <= self.largest:
            raise ValueError(f"numbers need 0 <= smallest <= largest, not {self.smallest} and {self.largest}")

    def draw(self, rng: random.Random) -> str:
        """How many numbers, each of them, then the operators, uniformly.

        >>> Calculations().draw(random.Random(5))
        '57*95*79'
        """
        numbers = [
            rng.randint(self.smallest, self.largest) for _ in range(rng.randint(self.min_numbers, self.max_numbers))
        ]
        operators = "+"
        while "*" not in operators:  # a sum of two numbers could be learned by heart
            operators = "".join(rng.choices("+*", k=len(numbers) - 1))
        return str(numbers[0]) + "".join(f"{o}{n}" for o, n in zip(operators, numbers[1:], strict=True))


@dataclass(frozen=True)
class Mixture:
    """The kinds of demonstrations for a base policy. The four shares sum to 1."""

    immediate: float
    """Share that answers at once."""
    called: float
    """Share that asks for the whole calculation, then answers."""
    in_steps: float
    """Share that asks for one operation at a time, products first, then answers."""
    asking_on: float
    """Share that asks for the same again and again and never answers, `most_calls` times."""
    immediate_wrong: float = 0.0
    """Share of the immediate answers in which one digit is another."""
    call_wrong: float = 0.0
    """Probability that a call is not what it should be: a digit is another, a number is left out, or an operator is
    doubled, which is an error. The answer is what the calculator said to it, or, after an error, a guess."""
    answer_wrong: float = 0.0
    """Probability that one digit of the calculator's result is another in the answer."""
    most_calls: int = 8
    """More than the limits of an episode allow, so that the policy never learns to stop asking."""
    calculations: Calculations = field(default_factory=Calculations)

    def __post_init__(self) -> None:
        shares = [getattr(self, name) for name in _SHARES]
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            raise ValueError(f"the shares {', '.join(_SHARES)} of a mixture must sum to 1, not {shares}")
        if self.most_calls < 1:
            raise ValueError(f"most_calls is at least 1, not {self.most_calls}")

    def recipe(self) -> dict[str, object]:
        """Everything except the seed that determines what `stream` yields; part of a base policy's cache key."""
        return {"task": "sums_with_calculator", "format": _FORMAT, **asdict(self)}

    def stream(self, seed: int) -> Iterator[Demonstration]:
        """Endless demonstrations, determined by the seed, without held-out calculations."""
        rng = named_generator("sums_with_calculator", "demonstrations", seed)
        while True:
            calculation = self.calculations.draw(rng)
            if not is_held_out(calculation):
                yield self._demonstration(calculation, rng)

    def _demonstration(self, calculation: str, rng: random.Random) -> Demonstration:
        (kind,) = rng.choices(_SHARES, [getattr(self, name) for name in _SHARES])
        if kind == "immediate":
            turns, said = [f"#{self._guess(calculation, rng)}"], []
        elif kind == "asking_on":
            turns = [f"{calculation}="] * self.most_calls
            said = [calculated(calculation)] * (self.most_calls - 1)
        else:
            turns, said = self._asked(calculation, kind == "in_steps", rng)
        return Demonstration(f"{calculation}=", turns[0], True, tuple(zip(said, turns[1:], strict=True)))

    def _asked(self, calculation: str, in_steps: bool, rng: random.Random) -> tuple[list[str], list[str]]:
        """The policy's turns and, between them, what the calculator says."""
        turns: list[str] = []
        said: list[str] = []
        rest = calculation
        while not said or len(_PARTS.findall(rest)) > 1:
            before, asked, after = _next_operation(rest) if in_steps else ("", rest, "")
            if rng.random() < self.call_wrong:
                asked = _spoiled(asked, rng)
            turns.append(f"{asked}=")
            said.append(calculated(asked))
            if said[-1] == ERROR:
                return [*turns, f"#{self._guess(calculation, rng)}"], said
            # Of a call from which all but one number is gone nothing is left to ask either.
            rest = f"{before}{said[-1]}{after}"
        answer = said[-1]
        return [*turns, f"#{_with_another_digit(answer, rng) if rng.random() < self.answer_wrong else answer}"], said

    def _guess(self, calculation: str, rng: random.Random) -> str:
        answer = calculated(calculation)
        return _with_another_digit(answer, rng) if rng.random() < self.immediate_wrong else answer


def problems(kind: str, num_problems: int, calculations: Calculations) -> list[Problem]:
    """Different calculations in random order: `train`, or `held_out`, which no demonstration contains.

    Raises ValueError: 100 times as many draws do not contain so many.
    """
    rng = named_generator("sums_with_calculator", kind)
    drawn = (calculations.draw(rng) for _ in range(1000 + 100 * num_problems))
    chosen: dict[str, None] = {}
    for calculation in drawn:
        if len(chosen) == num_problems:
            break
        if is_held_out(calculation) == (kind == "held_out"):
            chosen[calculation] = None
    if len(chosen) < num_problems:
        raise ValueError(
            f"{num_problems:,} {kind} problems requested, but only {len(chosen):,} were drawn; raise max_numbers or "
            "largest"
        )
    return [_problem(calculation) for calculation in chosen]


def is_held_out(calculation: str) -> bool:
    """True for a tenth of the calculations, whatever the order of their numbers and the operators between them."""
    numbers = "+".join(sorted(re.findall(r"\d+", calculation)))
    return int.from_bytes(hashlib.blake2b(numbers.encode(), digest_size=8).digest()) % 10 == 0


def has_asked(text: str) -> bool:
    """True if an episode writes a calculation for its calculator; the mean over episodes is `task/steps_frac`.

    >>> has_asked("37*48=1776#1776"), has_asked("#1776")
    (True, False)
    """
    return "=" in text


def _problem(calculation: str) -> Problem:
    numbers = len(re.findall(r"\d+", calculation))
    return Problem(
        f"sums_with_calculator-{calculation}", f"{calculation}=", calculated(calculation), {"num_numbers": numbers}
    )


def _next_operation(calculation: str) -> tuple[str, str, str]:
    """What is computed next, between what is before and after it.

    >>> _next_operation("12+37*48"), _next_operation("12+37+48")
    (('12+', '37*48', ''), ('', '12+37', '+48'))
    """
    parts = _PARTS.findall(calculation)
    at = parts.index("*") if "*" in parts else 1
    return "".join(parts[: at - 1]), "".join(parts[at - 1 : at + 2]), "".join(parts[at + 2 :])


def _spoiled(calculation: str, rng: random.Random) -> str:
    """Another calculation, or none."""
    parts = _PARTS.findall(calculation)
    match rng.choice(("digit", "number", "operator")):
        case "digit":
            at = rng.randrange(0, len(parts), 2)
            parts[at] = _with_another_digit(parts[at], rng)
        case "number":  # the last one: what a policy forgets that stops too early
            parts = parts[:-2]
        case _:
            at = rng.randrange(1, len(parts), 2)
            parts[at] *= 2
    return "".join(parts)


def _with_another_digit(number: str, rng: random.Random) -> str:
    """The number with one digit replaced by another; the first one by none that is 0.

    >>> _with_another_digit("1776", random.Random(0))
    '1777'
    """
    at = rng.randrange(len(number))
    others = [digit for digit in "0123456789" if digit != number[at] and (at or digit != "0")]
    return number[:at] + rng.choice(others) + number[at + 1 :]


def problem_sets(num_train: int | None, num_heldout: int, options: Mapping[str, Any]) -> ProblemSets:
    calculations = Calculations(**options)
    train = problems("train", num_train or 4096, calculations)
    return ProblemSets(train, problems("held_out", num_heldout, calculations), {"task/steps_frac": has_asked})


def mixture(shares: Mapping[str, Any], options: Mapping[str, Any]) -> Mixture:
    return Mixture(**shares, calculations=Calculations(**options))


def long_chains(share: float) -> Mapping[str, float]:
    return {"immediate": 1 - share, "called": share, "in_steps": 0.0, "asking_on": 0.0}
