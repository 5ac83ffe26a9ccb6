"""What a file of this folder declares of its task, and the file of a name; a run loads the file of its own task."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from dapo_lit.data.problem import Problem


class ProblemSets(NamedTuple):
    train: list[Problem]
    heldout: list[Problem]
    metrics: Mapping[str, Callable[[str], bool]] = {}
    """The metrics that the task adds to a step's: the share of responses for which the predicate holds."""


class GeneratedTask(Protocol):
    """A file of this folder; its functions raise TypeError or ValueError for options that they do not take."""

    CHARACTERS: str
    """Vocabulary of its base policies; a task without it has none, nor the two functions after `problem_sets`."""

    def problem_sets(self, num_train: int | None, num_heldout: int, options: Mapping[str, Any]) -> ProblemSets: ...

    def mixture(self, shares: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """The demonstrations of a stage of pre-training (`policy.base.Demonstrations`)."""
        ...

    def long_chains(self, share: float) -> Mapping[str, float]:
        """The shares of a mixture in which so many demonstrations write their steps and the rest answers at once."""
        ...


def generated(name: str) -> GeneratedTask:
    return cast(GeneratedTask, import_module(f"dapo_lit.tasks.{name}"))


def characters(name: str) -> str | None:
    """The vocabulary of a task's base policies; None for a task without, such as one from a file."""
    return None if name == "file" else getattr(generated(name), "CHARACTERS", None)
