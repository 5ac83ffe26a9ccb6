"""Runs an environment: one of the package's at once, in this process; a user's in worker processes with deadlines, like
a reward function; a second try by the verifier.

All of them answer a question by a ticket, in any order, so that none holds up an episode that asks nothing.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dapo_lit.environments.tools import WRONG
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.score import Score
from dapo_lit.rewards.supervisor import Supervisor
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rewards.work import Setup, Stepping, Task

Step = Callable[[RewardProblem, Sequence[str]], str | None]
"""(problem, the policy's turns so far) -> what is appended to the episode, or None: it ends here."""


@dataclass(frozen=True)
class Answer:
    """What an environment said to a turn."""

    observation: str | None = None
    """None: the episode ends."""
    reward: float = 0.0
    """Of the turn that it answers."""
    error: str | None = None
    """The environment failed or was late: the episode ends without a verdict. None: it did not."""


class Environment(Protocol):
    def ask(self, ticket: Hashable, problem: RewardProblem, responses: Sequence[str]) -> None:
        """Asks what follows these turns of the policy; returns at once."""

    def answers(self, wait_s: float = 0.0) -> list[tuple[Hashable, Answer]]:
        """The answers since the last call; waits for the first one up to `wait_s`, if any is under way."""

    def withdraw(self, tickets: Collection[Hashable]) -> None:
        """Drops questions whose answers nobody wants any more; an answer may still come."""

    def close(self) -> None:
        """Ends its processes."""


class Tool:
    """A function of the package's, computed when it is asked."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._ready: list[tuple[Hashable, Answer]] = []

    def ask(self, ticket: Hashable, problem: RewardProblem, responses: Sequence[str]) -> None:
        self._ready.append((ticket, Answer(self._step(problem, responses))))

    def answers(self, wait_s: float = 0.0) -> list[tuple[Hashable, Answer]]:
        ready, self._ready = self._ready, []
        return ready

    def withdraw(self, tickets: Collection[Hashable]) -> None: ...

    def close(self) -> None: ...


class UserEnvironment:
    """A function or class of the user's, in `workers` processes that start with the first question."""

    def __init__(self, path: str, deadline_s: float, workers: int) -> None:
        self._path, self._deadline_s, self._workers = path, deadline_s, workers
        self._supervisor: Supervisor | None = None
        self._asked: dict[int, Hashable] = {}
        self._number = 0

    def ask(self, ticket: Hashable, problem: RewardProblem, responses: Sequence[str]) -> None:
        if self._supervisor is None:
            self._supervisor = Supervisor(Setup(symbolic=False, functions=(), environment=self._path), self._workers)
        self._number += 1
        self._asked[self._number] = ticket
        self._supervisor.submit(Task(self._number, self._deadline_s, Stepping(problem, tuple(responses))))

    def answers(self, wait_s: float = 0.0) -> list[tuple[Hashable, Answer]]:
        if self._supervisor is None:
            return []
        found: list[tuple[Hashable, Answer]] = []
        for outcome in self._supervisor.poll(wait_s):
            error = f"reached its deadline of {self._deadline_s:g} s" if outcome.timed_out else outcome.error
            answer = Answer(error=f"{self._path}: {error}") if error is not None else Answer(*outcome.result)
            found.append((self._asked.pop(outcome.number), answer))
        return found

    def withdraw(self, tickets: Collection[Hashable]) -> None:
        # Or those that no worker has begun would hold up the questions of the next step.
        unwanted = frozenset(tickets)
        numbers = [number for number, ticket in self._asked.items() if ticket in unwanted]
        for number in numbers:
            del self._asked[number]
        if self._supervisor is not None:
            self._supervisor.drop(numbers)

    def close(self) -> None:
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None


class SecondTry:
    """Ends an episode with a right answer, and says WRONG to any other; the verifier decides, on the last turn."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def ask(self, ticket: Hashable, problem: RewardProblem, responses: Sequence[str]) -> None:
        self._verifier.submit(ticket, problem, responses[-1])

    def answers(self, wait_s: float = 0.0) -> list[tuple[Hashable, Answer]]:
        ready = self._verifier.collect()
        if ready or not wait_s:
            return [(ticket, _said(score)) for ticket, score in ready]
        # Half a second, which is how often the verifier asks.
        asked = iter((False, True))
        return [(ticket, _said(score)) for ticket, score in self._verifier.drain(lambda waiting: next(asked))]

    def withdraw(self, tickets: Collection[Hashable]) -> None:
        """They are verified all the same, which takes milliseconds."""

    def close(self) -> None:
        self._verifier.close()


def _said(score: Score) -> Answer:
    if score.missing:
        return Answer(error=f"second_try: {score.error or 'the verifier reached its deadline'}")
    return Answer(None if score.correct else WRONG)
