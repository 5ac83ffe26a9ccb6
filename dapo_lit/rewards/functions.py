"""Rewards of your own, and the weighted sum of several.

A reward function scores a batch: `def reward(problems, completions) -> list[Score]`, or has a signature of another
trainer (signatures.py). It runs in a worker process, under the deadline. Its
module may have a function `prepare()`, called once a worker before any deadline runs: loading a model belongs there;
and a number `MEMORY_MB`, the address space a worker needs for it.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from ablations.errors import UserError
from dapo_lit.imports import check_path
from dapo_lit.rewards.score import Score

LENGTH_CHARS = 4000
"""The `length` reward is the number of characters over this, at most 1."""
BUILT_IN = ("correctness", "format", "length")


LEAVES_OUT = "leaves_out"
"""An attribute of functions whose `None` means that they do not apply, so that a sum has them as 0."""


@dataclass(frozen=True)
class RewardProblem:
    """A problem as a reward sees it. The built-in rules read the answer alone."""

    id: str
    problem: str
    answer: str
    meta: Mapping[str, object] = field(default_factory=dict)
    sample: str = ""
    """Step, attempt and index of the completion's sample; differs between all completions of a problem in training."""
    turns: tuple[str, ...] = ()
    """Of an episode with an environment: the texts of the policy's turns. The completion has the environment's too."""
    ids: tuple[int, ...] = ()
    """The policy's tokens, for functions that ask for `completion_ids`; empty for all others."""


RewardFunction = Callable[[Sequence[RewardProblem], Sequence[str]], Sequence[Score | float]]


class RewardError(UserError):
    """A reward function fails, or does not return what a reward must."""


class NoVerdictError(ValueError):
    """A reward function returned something that is not a score; the message says what."""


def needed_memory_mb(function: RewardFunction) -> int:
    """The value of `MEMORY_MB` in the function's module, 0 without one."""
    return int(getattr(sys.modules.get(function.__module__), "MEMORY_MB", 0))


def call_function(
    function: RewardFunction, problems: Sequence[RewardProblem], texts: Sequence[str], wrong_value: float | None
) -> list[Score]:
    """One score a completion, wrong and with an `error` where the function returned none; raises what it raises.

    `wrong_value`: the value of a wrong answer; None for an addend of a weighted sum, which may be any number.
    """
    try:
        results = _listed(function(problems, texts), len(texts))
    except NoVerdictError as fault:
        return [Score(False, wrong_value or 0.0, error=str(fault))] * len(texts)
    if wrong_value is None and getattr(function, LEAVES_OUT, False):
        results = [0.0 if result is None else result for result in results]
    return [_judged(result, wrong_value, declared_range(function)) for result in results]


def declared_range(function: Callable[..., Any]) -> tuple[float, float] | None:
    """The least and the greatest number of a graded reward, its attribute `range`; None: a number is a verdict.

    Raises ValueError: it is no such pair.
    """
    found = getattr(function, "range", None)
    if found is None:
        return None
    low, high = found if isinstance(found, tuple | list) and len(found) == 2 else (math.nan, math.nan)
    numbers = all(isinstance(end, int | float) and math.isfinite(end) for end in (low, high))
    if not numbers or not low < high:
        raise ValueError(f"its range is {_shown(found)}; it must be a pair of numbers, the least and the greatest")
    return float(low), float(high)


def _listed(returned: object, count: int) -> list[object]:
    """Raises NoVerdictError unless `returned` has one value for each of `count` completions."""
    if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
        raise NoVerdictError(f"returned {_shown(returned)} for {count} completions, not a list with a score for each")
    results = list(returned)
    if len(results) != count:
        raise NoVerdictError(f"returned {len(results)} scores for {count} completions")
    return results


def _judged(result: object, wrong_value: float | None, bounds: tuple[float, float] | None) -> Score:
    try:
        if isinstance(result, Score):
            return _checked(result)
        if result is None:
            raise NoVerdictError(
                "returned None for a completion, not a number: what decides about right and wrong has a verdict for "
                "every problem; return 0, or judge all kinds of problems in one function"
            )
        number = _number(result)
        if wrong_value is None:
            return Score(number > 0, number)
        if bounds is not None:
            low, high = bounds
            if low <= number <= high:
                return Score(number == high, number)
            raise NoVerdictError(f"returned {number:g}, and its range is {low:g} to {high:g}")
        if number in (1.0, 0.0, wrong_value):
            right = number == 1.0
            return Score(right, 1.0 if right else wrong_value)
        raise NoVerdictError(
            f"returned {number:g}: a number is a verdict, 1 for right and 0 or reward.wrong_value={wrong_value:g} for "
            f"wrong; declare a graded reward by the function's attribute, `.range = (0, 1)`, whose greatest number is "
            f"right, or return Score(correct=..., value={number:g})"
        )
    except NoVerdictError as fault:
        return Score(False, wrong_value or 0.0, error=str(fault))


def _number(result: object) -> float:
    """A finite number, those of numpy and torch included; raises NoVerdictError for anything else."""
    item = getattr(result, "item", None)
    try:
        result = item() if callable(item) else result
    except (RuntimeError, ValueError):  # an array
        raise NoVerdictError(f"returned {_shown(result)} for a completion, not a number") from None
    if not isinstance(result, Real) or not math.isfinite(result):
        raise NoVerdictError(f"returned {_shown(result)} for a completion, not a finite number")
    return float(result)


def _checked(score: Score) -> Score:
    """The score in plain types, which alone can be sent; raises NoVerdictError."""
    correct = _number(score.correct)
    if correct not in (0.0, 1.0):
        raise NoVerdictError(
            f"returned {correct:g} as what counts as correct (Score.correct, verl's `acc`, OpenRLHF's `scores`), not "
            "True or False, 1 or 0"
        )
    if score.answer is not None and not isinstance(score.answer, str):
        raise NoVerdictError(f"returned a Score with answer={_shown(score.answer)}, not a text")
    if score.error is not None and not isinstance(score.error, str):
        raise NoVerdictError(f"returned a Score with error={_shown(score.error)}, not a text")
    parts = {without_surrogates(str(name)): _number(part) for name, part in score.parts.items()}
    answer, error = (None if text is None else without_surrogates(text) for text in (score.answer, score.error))
    return Score(correct == 1.0, _number(score.value), answer, parts, error=error)


def without_surrogates(text: str) -> str:
    """Text that UTF-8 can hold: halves of characters, as in a decoded byte, become `?`."""
    return text.encode("utf-8", "replace").decode()


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_weights(weights: Mapping[str, float]) -> None:
    """Raises ValueError for weights without `correctness`, that are not finite, or of functions without a module."""
    if "correctness" not in weights:
        raise ValueError(
            "weights must name 'correctness' (0 keeps it out of the value: dynamic sampling still needs it)"
        )
    for name, weight in weights.items():
        if not math.isfinite(weight):
            raise ValueError(f"the weight of {name} must be a number, not {weight}")
        if name not in BUILT_IN:
            check_path(name)


def built_in_value(name: str, text: str, answer: str | None) -> float:
    """`format`: 1 if the extraction found an answer, else 0. `length`: thousands of characters over 4, at most 1."""
    return float(answer is not None) if name == "format" else min(1.0, len(text) / LENGTH_CHARS)
