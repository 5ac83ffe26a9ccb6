"""What is sent to a worker process, and what comes back: plain values, without what does the work."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dapo_lit.rewards.functions import RewardProblem


@dataclass(frozen=True)
class Setup:
    """The setup that a worker gets before its first task."""

    symbolic: bool
    """Compares answers: import sympy."""
    functions: tuple[str, ...]
    """Paths of the reward functions to import."""
    environment: str | None = None
    """Path of the environment to import; None: there is none."""
    models: bool = False
    """Reads the files of models: import transformers."""


@dataclass(frozen=True)
class Comparison:
    prediction: str
    answer: str


@dataclass(frozen=True)
class Rewarding:
    function: str
    problems: tuple[RewardProblem, ...]
    texts: tuple[str, ...]
    wrong_value: float | None
    """The value of a wrong answer; None for an addend of a weighted sum."""


@dataclass(frozen=True)
class Stepping:
    """Asks the environment what follows these turns of the policy."""

    problem: RewardProblem
    responses: tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """Reads the files of a model, as far as they are no weights."""

    folder: str


@dataclass(frozen=True)
class Rendering:
    """Renders chats by a template of a model's."""

    template: str
    chats: tuple[tuple[Mapping[str, Any], ...], ...]
    settings: Mapping[str, Any]
    """Names that the template may use, with their values."""
    day: str
    """What it is told when it asks for the time by the function `clock`."""
    clock: str
    add_generation_prompt: bool


Work = Comparison | Rewarding | Stepping | Reading | Rendering


@dataclass
class Task:
    """Work under a deadline."""

    number: int
    deadline_s: float
    work: Work
    attempts: int = 0
    """Supervisors that died while they had it."""


@dataclass(frozen=True)
class Outcome:
    number: int
    result: Any = None
    timed_out: bool = False
    error: str | None = None
    traceback: str = ""
    service_s: float = 0.0
    """Time in the worker, without waiting."""
