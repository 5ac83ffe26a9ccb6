"""A second domain: short programs on strings, judged by running them.

A prompt shows what a program does, `abX>Xba|dZe>eZd=`. A response ends with a program after `#` that does the same,
like `#reverse;drop 2`. It may answer at once, write down what each step makes of the first string
(`drop 1:bX;reverse:Xb#drop 1;reverse`), or never end. Many programs are right, so there is nothing to compare
with: the reward runs the program on the pairs shown and on hidden ones. The interpreter is the loop in `run`; no text
becomes Python, and the length of a program and of its strings is bounded.

This file makes problems, the reward, and the demonstrations for a base policy.
"""

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dapo_lit.data.problem import Problem
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.seeds import named_generator
from dapo_lit.tasks.chain_sum import Demonstration
from dapo_lit.tasks.generated import ProblemSets
from math_answers.templates import extract_hash

WITHOUT_NUMBER = ("reverse", "upper", "lower", "sort", "double")
WITH_NUMBER = ("drop", "take", "rotate")
LETTERS = "abdeXYZ"
"""The alphabet of the strings of problems."""
CHARACTERS = "".join(
    sorted({*LETTERS, *LETTERS.swapcase(), *"".join(WITHOUT_NUMBER + WITH_NUMBER), *"0123456789 >|=:;#?"})
)
"""Every character of a prompt or a response."""

MAX_STEPS = 8
MAX_CHARS = 200
SHOWN, HIDDEN = 2, 4
_STEP = re.compile(r"([a-z]+)(?: ([0-9]{1,2}))?")
_SHARES = ("immediate", "worked", "rambling")
_FORMAT = 1
"""Increase it when `Mixture.stream` changes its output, so that cached base policies are rebuilt."""


class ProgramError(ValueError):
    """The text is not a program."""


def run(program: str, text: str) -> str:
    """The string that `program` makes of `text`; raises ProgramError.

    >>> run("drop 1; reverse; upper", "abcd")
    'DCB'
    """
    steps = [step.strip() for step in program.strip().strip("`.").split(";")]
    if len(steps) > MAX_STEPS:
        raise ProgramError(f"more than {MAX_STEPS} steps")
    for step in steps:
        text = _apply(step, text)
        if len(text) > MAX_CHARS:
            raise ProgramError(f"more than {MAX_CHARS} characters")
    return text


def _apply(step: str, text: str) -> str:
    found = _STEP.fullmatch(step)
    if found is None or (found[1] in WITH_NUMBER) != (found[2] is not None):
        raise ProgramError(f"{step[:40]!r} is not a step")
    number = int(found[2] or 0)
    match found[1]:
        case "reverse":
            return text[::-1]
        case "upper":
            return text.upper()
        case "lower":
            return text.lower()
        case "sort":
            return "".join(sorted(text))
        case "double":
            return text * 2
        case "drop":
            return text[number:]
        case "take":
            return text[:number]
        case "rotate":
            shift = number % len(text) if text else 0
            return text[shift:] + text[:shift]
        case _:
            raise ProgramError(f"{step[:40]!r} is not a step")


def reward(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[bool]:
    """True if the program after the last `#` is right on every pair."""
    return [_is_right(problem, extract_hash(text)) for problem, text in zip(problems, completions, strict=True)]


def _is_right(problem: RewardProblem, program: str | None) -> bool:
    pairs = problem.meta["pairs"]
    if not isinstance(pairs, list) or not pairs:
        raise ValueError(f"problem {problem.id} has no list of pairs")
    try:
        return program is not None and all(run(program, before) == after for before, after in pairs)
    except ProgramError:
        return False


@dataclass(frozen=True)
class Programs:
    """The range of the programs."""

    min_steps: int = 1
    max_steps: int = 2
    max_letters: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.min_steps <= self.max_steps <= MAX_STEPS:
            raise ValueError(f"programs need 1 <= min_steps <= max_steps <= {MAX_STEPS}, not {self}")
        if not 3 <= self.max_letters <= 12:
            raise ValueError(f"strings have 3 letters or more: 3 <= max_letters <= 12, not {self.max_letters}")

    def draw(self, rng: random.Random) -> Problem:
        """A problem whose program changes both strings shown."""
        while True:
            program = self.draw_program(rng)
            texts = ["".join(rng.choices(LETTERS, k=rng.randint(3, self.max_letters))) for _ in range(SHOWN + HIDDEN)]
            pairs = [[text, run(program, text)] for text in texts]
            if all(after and after != before for before, after in pairs[:SHOWN]):
                statement = "|".join(f"{before}>{after}" for before, after in pairs[:SHOWN]) + "="
                meta = {"pairs": pairs, "num_steps": program.count(";") + 1}
                return Problem(f"string_programs-{statement[:-1]}", statement, program, meta)

    def draw_program(self, rng: random.Random) -> str:
        names = rng.choices(WITHOUT_NUMBER + WITH_NUMBER, k=rng.randint(self.min_steps, self.max_steps))
        return ";".join(f"{name} {rng.randint(1, 2)}" if name in WITH_NUMBER else name for name in names)


def problems(count: int, *, held_out: bool, programs: Programs) -> list[Problem]:
    """Different problems in random order; which are held out depends on their statement only."""
    rng = named_generator("string_programs", "held_out" if held_out else "train")
    chosen: dict[str, Problem] = {}
    while len(chosen) < count:
        drawn = programs.draw(rng)
        if _is_held_out(drawn) == held_out:
            chosen[drawn.problem] = drawn
    return list(chosen.values())


def _is_held_out(problem: Problem) -> bool:
    return hashlib.sha256(problem.problem.encode()).digest()[0] % 10 == 0


@dataclass(frozen=True)
class Mixture:
    """The kinds of demonstrations for a base policy. The three shares sum to 1."""

    immediate: float
    """Share that answers at once."""
    worked: float
    """Share that writes down each step and what it makes of the first string, then answers."""
    rambling: float
    """Share that writes such lines forever; cut off at `rambling_chars`, without an EOS token."""
    immediate_wrong: float = 0.0
    """Share of the immediate answers that are another program."""
    worked_wrong: float = 0.0
    """Share of the worked answers that are another program, worked out faithfully."""
    rambling_chars: int = 96
    """Above the response limit, so that the policy never learns to end them."""
    programs: Programs = field(default_factory=Programs)

    def __post_init__(self) -> None:
        shares = [getattr(self, name) for name in _SHARES]
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            raise ValueError(f"the shares {', '.join(_SHARES)} of a mixture must sum to 1, not {shares}")

    def recipe(self) -> dict[str, object]:
        """Everything except the seed that determines what `stream` yields; part of a base policy's cache key."""
        return {"task": "string_programs", "format": _FORMAT, **asdict(self)}

    def stream(self, seed: int) -> Iterator[Demonstration]:
        """Endless demonstrations, determined by the seed, without held-out problems."""
        rng = named_generator("string_programs", "demonstrations", seed)
        while True:
            problem = self.programs.draw(rng)
            if not _is_held_out(problem):
                yield self._demonstration(problem, rng)

    def _demonstration(self, problem: Problem, rng: random.Random) -> Demonstration:
        (kind,) = rng.choices(_SHARES, [getattr(self, name) for name in _SHARES])
        wrong = {"immediate": self.immediate_wrong, "worked": self.worked_wrong, "rambling": 1.0}[kind]
        program = self.programs.draw_program(rng) if rng.random() < wrong else problem.answer
        before = problem.problem.partition(">")[0]
        if kind == "immediate":
            return Demonstration(problem.problem, f"#{program}", True)
        if kind == "worked":
            return Demonstration(problem.problem, f"{trace(program, before)}#{program}", True)
        text = ""
        while len(text) < self.rambling_chars:
            text += trace(self.programs.draw_program(rng), before) + "?"
        return Demonstration(problem.problem, text[: self.rambling_chars], False)


def trace(program: str, text: str) -> str:
    """The string after each step of a program.

    >>> trace("drop 1;upper", "abX")
    'drop 1:bX;upper:BX'
    """
    lines = []
    for step in program.split(";"):
        text = run(step, text)
        lines.append(f"{step}:{text}")
    return ";".join(lines)


def has_written_steps(text: str) -> bool:
    """True if the response writes down what a step makes of the string."""
    return re.search(r"[a-z]:[A-Za-z]|\d:[A-Za-z]", text) is not None


def problem_sets(num_train: int | None, num_heldout: int, options: Mapping[str, Any]) -> ProblemSets:
    programs = Programs(**options)
    return ProblemSets(
        problems(num_train or 20_000, held_out=False, programs=programs),
        problems(num_heldout, held_out=True, programs=programs),
        {"task/steps_frac": has_written_steps},
    )


def mixture(shares: Mapping[str, Any], options: Mapping[str, Any]) -> Mixture:
    return Mixture(**shares, programs=Programs(**options))


def long_chains(share: float) -> Mapping[str, float]:
    return {"immediate": 1 - share, "worked": share, "rambling": 0.0}
