"""Rewards of your own, and the weighted sum of several.

A reward function scores a batch: `def reward(problems, completions) -> list[Score]`. It runs in a worker process, under
the deadline. Its module may have a function `prepare()`, called once a worker before any deadline runs: loading a model
belongs there; and a number `MEMORY_MB`, the address space a worker needs for it.
"""

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dapo_lit.rewards.score import Score

LENGTH_CHARS = 4000
"""The `length` reward is the number of characters over this, at most 1."""
BUILT_IN = ("correctness", "format", "length")


@dataclass(frozen=True)
class Question:
    """A problem as a reward function sees it."""

    id: str
    problem: str
    answer: str
    meta: Mapping[str, object] = field(default_factory=dict)


RewardFunction = Callable[[Sequence[Question], Sequence[str]], Sequence[Score | float]]


def check_path(path: str) -> None:
    """Raises ValueError if `path` is no `package.module.function` of an importable module; does not import it."""
    module, _, name = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"{path!r} is no path to a function; write package.module.function")
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ValueError(
            f"the module {module!r} of the reward function {name!r} is not found; is its folder on PYTHONPATH?"
        )


def load_function(path: str) -> RewardFunction:
    """The function at `package.module.function`, after its module's `prepare()` if there is one.

    Raises AttributeError, ImportError, TypeError, or what the module raises.
    """
    module_name, _, name = path.rpartition(".")
    module = importlib.import_module(module_name)
    function = getattr(module, name)
    if not callable(function):
        raise TypeError(f"{path} is no function but a {type(function).__name__}")
    prepare = getattr(module, "prepare", None)
    if prepare is not None:
        prepare()
    loaded: RewardFunction = function
    return loaded


def needed_memory_mb(function: RewardFunction) -> int:
    """What the function's module asks for in `MEMORY_MB`, 0 if nothing."""
    return int(getattr(sys.modules.get(function.__module__), "MEMORY_MB", 0))


def call_function(function: RewardFunction, questions: Sequence[Question], texts: Sequence[str]) -> list[Score]:
    """One score a completion; raises what the function raises, and ValueError for a result of another shape."""
    results = list(function(questions, texts))
    if len(results) != len(texts):
        raise ValueError(f"the reward function returned {len(results)} scores for {len(texts)} completions")
    scores = [result if isinstance(result, Score) else Score(result > 0, float(result)) for result in results]
    for score in scores:
        if not math.isfinite(score.value):
            raise ValueError(f"the reward function returned the value {score.value}")
    return scores


def check_weights(weights: Mapping[str, float]) -> None:
    """Raises ValueError for weights without `correctness`, that are no numbers, or of functions that are not there."""
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
