"""A user's environment as a worker calls it (docs/turns.md): a function, or a class that is built for each call; either
may be `async`.
"""

import inspect
import math
import sys
from collections.abc import Callable, Sequence

from dapo_lit.imports import named_object
from dapo_lit.rewards.functions import RewardProblem, without_surrogates
from dapo_lit.rewards.signatures import awaited

Step = Callable[[RewardProblem, Sequence[str]], object]
"""(problem, the policy's turns so far) -> what the environment says to the last one, and perhaps its reward."""
MOST_CHARACTERS = 100_000
"""A longer observation is refused: it would fit into no context."""


def load_environment(path: str) -> Step:
    """The environment at `package.module.name`, after its module's `prepare()` if there is one.

    A class is built for each call, as `Name(problem)`, and its `step` gets all turns in order: what a worker kept of an
    episode would be lost with the worker.

    Raises NamedError, TypeError (a signature that is not known), or what `prepare()` raises.
    """
    found = named_object(path)
    if not callable(found):
        raise TypeError(f"{path} is not a function or class but a {type(found).__name__}")
    prepare = getattr(sys.modules[path.rpartition(".")[0]], "prepare", None)
    if prepare is not None:
        prepare()
    if not isinstance(found, type):
        _check(path, found, ("problem", "responses"))
        return awaited(found)
    if not callable(getattr(found, "step", None)):
        raise TypeError(f"{path} is a class without `step(self, response)`")
    _check(path, found, ("problem",))

    def replayed(problem: RewardProblem, responses: Sequence[str]) -> object:
        environment, said = found(problem), None
        for response in responses:
            said = awaited(environment.step)(response)
        return said

    return replayed


def _check(path: str, called: Callable[..., object], names: tuple[str, ...]) -> None:
    """Raises TypeError unless it takes these arguments."""
    try:
        inspect.signature(called).bind(*names)
    except ValueError:  # a callable written in C
        return
    except TypeError:
        raise TypeError(f"{path} does not take ({', '.join(names)}): docs/turns.md has examples") from None


def observed(said: object) -> tuple[str | None, float]:
    """What an environment said and its reward for the turn, 0 where it gave none, as they are sent.

    Raises TypeError or ValueError for anything but a text or None, or a pair of that and a finite number.
    """
    if isinstance(said, tuple) and len(said) == 2:
        said, reward = said
        try:
            value = math.nan if isinstance(reward, str | bytes) else float(reward)  # also of numpy and torch
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"an environment's reward for a turn is a finite number, not {str(reward)[:60]!r}")
        return _text(said), value
    return _text(said), 0.0


def _text(said: object) -> str | None:
    if said is None:
        return None
    if not isinstance(said, str):
        raise TypeError(
            "an environment returns a text, or None to end the episode, or a pair of that and the turn's reward, not "
            f"a {type(said).__name__}"
        )
    if not 0 < len(said) <= MOST_CHARACTERS:
        raise ValueError(f"an observation of {len(said):,} characters; it has 1 to {MOST_CHARACTERS:,}")
    return without_surrogates(said)
