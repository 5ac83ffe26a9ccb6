"""Score responses: in process where that takes microseconds, in killable worker processes where it may not end."""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dapo_lit.imports import check_path
from dapo_lit.rewards.functions import BUILT_IN, RewardProblem, built_in_value, check_weights
from dapo_lit.rewards.score import Score
from dapo_lit.rewards.work import Comparison, Outcome, Rewarding, Setup, Task
from math_answers.extraction import Extraction, extract, reference_answer
from math_answers.rules import Rule, check_reference, decide

if TYPE_CHECKING:
    from dapo_lit.rewards.supervisor import Supervisor

Ticket = Hashable
MAX_CACHED = 65536
"""Verdicts on (prediction, reference answer) kept; within a group most answers repeat."""
LARGEST = 1e12
"""A reward above it in size has no verdict: advantages square rewards in float32, whose largest number is 3.4e38."""
BATCH = 32
"""Completions that a reward function gets at once while the workers are busy."""


@dataclass
class _Response:
    """A response that has no score yet."""

    ticket: Ticket
    problem: RewardProblem
    text: str
    prediction: str | None
    correctness: Score | None = None
    values: dict[str, float] = field(default_factory=dict)
    """Values of the weighted rewards other than correctness."""
    waiting: int = 0
    """Results of workers that are still missing."""
    timed_out: bool = False
    error: str | None = None
    """Error of a weighted reward other than correctness."""


class Verifier:
    """Turns (problem, response) pairs into scores: 1 if the response is right, else `wrong_value` (DAPO Eq. 7).

    `rule` and `extraction` decide what is right, or `function`, a path to a reward function of your own. `weights`
    makes the value a weighted sum of `correctness` (1 or `wrong_value`, or the value of `function`), `format`,
    `length`, and reward functions named by their paths. Worker processes start with the first response that needs one;
    each may hold 2 GiB, or what a function asks for. A response whose verification takes longer than `deadline_s`, or
    fails, has no verdict: its score is `missing`.

    Use it in one thread of one process. Raises ValueError for settings that make no sense, RuntimeError if the workers
    cannot run.

    >>> with Verifier(rule="numeric", extraction="hash") as verifier:
    ...     verifier.score([(RewardProblem("a", "", "20"), "7+4=11;11+9=20;#20")])[0].value
    1.0
    """

    def __init__(
        self,
        *,
        rule: Rule,
        extraction: Extraction,
        wrong_value: float = -1.0,
        deadline_s: float = 2.0,
        workers: int = 2,
        function: str | None = None,
        weights: Mapping[str, float] | None = None,
    ):
        if function is not None:
            check_path(function)
        if weights is not None:
            check_weights(weights)
        self.rule, self.extraction, self.wrong_value = rule, extraction, wrong_value
        self.function, self.weights, self.deadline_s = function, weights, deadline_s
        self.first_error: str | None = None
        """The first error of a worker or a reward function, with its traceback if there is one."""
        self.service_s: deque[float] = deque(maxlen=100_000)
        """Seconds that each of the last tasks took in a worker, without waiting."""
        self._by_groups = _asking_for(self.functions, "groups")
        self._wants_ids = bool(_asking_for(self.functions, "completion_ids"))
        self._workers = workers
        self._supervisor: Supervisor | None = None
        self._closed = False
        self._ready: list[tuple[Ticket, Score]] = []
        # By prediction and answer: samples of a group often give the same answer, and math-like comparisons are slow.
        self._verdicts: OrderedDict[tuple[str, str], Score] = OrderedDict()
        self._comparing: dict[tuple[str, str], list[_Response]] = {}
        self._batches: dict[str, list[_Response]] = {}
        self._tasks: dict[int, tuple[str, str] | tuple[str, list[_Response]]] = {}
        self._number = 0

    def submit(self, ticket: Ticket, problem: RewardProblem, text: str) -> None:
        """Queue one response; returns at once. Its score comes back under `ticket` from `collect` or `drain`.

        For a function that asks for whole groups it is a group by itself.
        """
        self._submit([(ticket, problem, text)], self._by_groups)

    def submit_group(self, completions: Iterable[tuple[Ticket, RewardProblem, str]]) -> None:
        """Queue all completions of one problem together, for functions that ask for whole groups (`wants_groups`)."""
        self._submit(completions, self._by_groups)

    @property
    def functions(self) -> tuple[str, ...]:
        """Paths of the reward functions: the one that decides and those of `weights`."""
        paths = dict.fromkeys([self.function, *(self.weights or ())])
        return tuple(path for path in paths if path is not None and path not in BUILT_IN)

    @property
    def wants_groups(self) -> bool:
        """True if a function asks for whole groups, so that responses belong into `submit_group`."""
        return bool(self._by_groups)

    @property
    def wants_ids(self) -> bool:
        """True if a function asks for tokens, which belong into `RewardProblem.ids`."""
        return self._wants_ids

    def _submit(self, completions: Iterable[tuple[Ticket, RewardProblem, str]], whole: Collection[str]) -> None:
        """whole: functions that get exactly these completions, and not with others or in parts."""
        if self._closed:
            raise RuntimeError("the verifier is closed")
        # Of an episode, the answer is in the policy's last turn: nothing that its environment said counts as one.
        responses = [
            _Response(ticket, p, text, extract(p.turns[-1] if p.turns else text, self.extraction))
            for ticket, p, text in completions
        ]
        for response in responses:
            for name in self.weights or ():
                if name in BUILT_IN:
                    own = "".join(response.problem.turns) or response.text
                    response.values[name] = built_in_value(name, own, response.prediction)
            for path in self.functions:
                response.waiting += 1
                if path not in whole:
                    self._batches.setdefault(path, []).append(response)
            if self.function is None:
                self._compare(response)
        for path in self.functions:
            if path in whole:
                self._send(path, responses)
        self._send_batches()
        for response in responses:
            self._finish_if_complete(response)

    def collect(self) -> list[tuple[Ticket, Score]]:
        """The scores that are ready, in the order in which they were decided; never waits."""
        self._advance(wait_s=0.0)
        ready, self._ready = self._ready, []
        return ready

    def drain(self, gives_up: Callable[[int], bool] = lambda waiting: False) -> list[tuple[Ticket, Score]]:
        """The scores of everything submitted and not yet collected; waits for all of them.

        gives_up: called twice a second with the number of tasks under way; once it returns True, what is ready is
            returned, and the rest is scored later.
        """
        while (self._tasks or any(self._batches.values())) and not gives_up(len(self._tasks)):
            self._advance(wait_s=0.5)
        return self.collect()

    def score(self, pairs: Sequence[tuple[RewardProblem, str]]) -> list[Score]:
        """The scores of `pairs`, in their order. No other response may be pending."""
        self._refuse_pending()
        groups: dict[Hashable, list[tuple[Ticket, RewardProblem, str]]] = {}
        for index, (problem, text) in enumerate(pairs):
            groups.setdefault(problem.id if self.wants_groups else index, []).append((index, problem, text))
        for group in groups.values():
            self.submit_group(group)
        scores = dict(self.drain())
        return [scores[index] for index in range(len(pairs))]

    def score_batches(self, batches: Sequence[Sequence[tuple[RewardProblem, str]]]) -> list[list[Score]]:
        """The scores of each batch, of which every function gets one at a time. No other response may be pending."""
        self._refuse_pending()
        for number, batch in enumerate(batches):
            self._submit([((number, place), *pair) for place, pair in enumerate(batch)], self.functions)
        scores = dict(self.drain())
        return [[scores[number, place] for place in range(len(batch))] for number, batch in enumerate(batches)]

    def equivalent(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """True if the answers of each pair, as `extract` returns them, are the same under the rule; for votes.

        No other response may be pending.
        """
        self._refuse_pending()
        unweighted = dict.fromkeys(self.weights or (), 0.0)
        for index, (a, b) in enumerate(pairs):
            response = _Response(index, RewardProblem("", "", b), a, a, values=dict(unweighted))
            self._compare(response)
            self._finish_if_complete(response)
        verdicts = dict(self.drain())
        return [verdicts[index].correct for index in range(len(pairs))]

    def _refuse_pending(self) -> None:
        if self._ready or self._tasks:
            raise RuntimeError("other responses are pending: call drain() first")

    def check_answer(self, answer: str) -> str | None:
        """None if `answer` can serve as a reference under the rule, else what is wrong with it."""
        return None if self.function is not None else check_reference(self._reference(answer), self.rule)

    def close(self) -> None:
        """End the worker processes; the verifier cannot be used afterwards."""
        self._closed = True
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- to the workers --------------------------------------------------------------------------------

    def _compare(self, response: _Response) -> None:
        """Decides in process, from the cache, or sends the pair to a worker, once however many responses share it."""
        prediction, answer = response.prediction, self._reference(response.problem.answer)
        # Most answers are decided here by their text, without a process.
        equal = decide(prediction, answer, self.rule) if prediction is not None else False
        if prediction is None or equal is not None:
            response.correctness = self._verdict(bool(equal), prediction)
            return
        key = (prediction, answer)
        if key in self._verdicts:
            self._verdicts.move_to_end(key)
            response.correctness = self._verdicts[key]
            return
        response.waiting += 1
        if key in self._comparing:
            # Asked already: the verdict is shared, the deadline too.
            self._comparing[key].append(response)
            return
        self._comparing[key] = [response]
        number = self._next_number()
        self._tasks[number] = key
        self._pool().submit(Task(number, self.deadline_s, Comparison(prediction, answer)))

    def _reference(self, answer: str) -> str:
        return reference_answer(answer, self.extraction)

    def _send_batches(self) -> None:
        """Sends what waits for reward functions: at once to an idle worker, else when a batch is full."""
        for path, waiting in self._batches.items():
            while waiting and (len(waiting) >= BATCH or self._pool().hungry):
                self._send(path, waiting[:BATCH])
                del waiting[:BATCH]

    def _send(self, path: str, responses: list[_Response]) -> None:
        number = self._next_number()
        self._tasks[number] = (path, responses)
        wrong_value = self.wrong_value if path == self.function else None
        work = Rewarding(path, tuple(r.problem for r in responses), tuple(r.text for r in responses), wrong_value)
        # A batch has the sum of its deadlines; if it is late, each response is repeated by itself below.
        self._pool().submit(Task(number, self.deadline_s * len(responses), work))

    def _pool(self) -> "Supervisor":
        if self._supervisor is None:
            # Most answers to numbers are decided without workers, whose code is then not loaded.
            from dapo_lit.rewards.supervisor import Supervisor

            # sympy costs time and memory in each worker: only where the rule may need it.
            symbolic = self.function is None and self.rule == "sympy"
            self._supervisor = Supervisor(Setup(symbolic, self.functions), self._workers)
        return self._supervisor

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    # --- back from the workers ------------------------------------------------------------------------------------

    def _advance(self, wait_s: float) -> None:
        if self._supervisor is None:
            return
        self._send_batches()
        for outcome in self._supervisor.poll(wait_s):
            self.service_s.append(outcome.service_s)
            task = self._tasks.pop(outcome.number)
            if isinstance(task[1], str):
                self._take_verdict((task[0], task[1]), outcome)
            else:
                self._take_rewards(task[0], task[1], outcome)
        self._send_batches()

    def _take_verdict(self, key: tuple[str, str], outcome: Outcome) -> None:
        score = self._verdict(bool(outcome.result), key[0])
        score = replace(score, timed_out=outcome.timed_out, error=outcome.error)
        if outcome.error is not None:
            self.first_error = self.first_error or outcome.traceback or outcome.error
        else:
            self._verdicts[key] = score
            if len(self._verdicts) > MAX_CACHED:
                self._verdicts.popitem(last=False)
        for response in self._comparing.pop(key):
            response.correctness = score
            response.waiting -= 1
            self._finish_if_complete(response)

    def _take_rewards(self, path: str, responses: list[_Response], outcome: Outcome) -> None:
        fails = outcome.timed_out or outcome.error is not None
        if fails and len(responses) > 1 and path not in self._by_groups:
            for response in responses:  # one of them is the cause: each is repeated with its own deadline
                self._send(path, [response])
            return
        failed = Score(False, self.wrong_value, timed_out=outcome.timed_out, error=outcome.error)
        scores = [Score(**each) for each in outcome.result] if outcome.result is not None else [failed] * len(responses)
        for response, score in zip(responses, scores, strict=True):
            if score.error is not None:
                score = replace(score, error=f"{path}: {score.error}")
                trace = f"{path}:\n{outcome.traceback}" if outcome.traceback else score.error
                self.first_error = self.first_error or trace
            if path == self.function:
                response.correctness = replace(
                    score, answer=response.prediction if score.answer is None else score.answer
                )
            if self.weights is not None and path in self.weights:
                response.values[path] = score.value
                response.error = response.error or score.error
                response.timed_out = response.timed_out or score.timed_out
            response.waiting -= 1
            self._finish_if_complete(response)

    def _finish_if_complete(self, response: _Response) -> None:
        if response.waiting or response.correctness is None:
            return
        score = response.correctness
        if self.weights is not None:
            values = {**response.values, "correctness": score.value}
            parts = {name: weight * values[name] for name, weight in self.weights.items()}
            value, error = math.fsum(parts.values()), score.error or response.error
            late = score.timed_out or response.timed_out
            score = replace(score, value=value, parts=parts, timed_out=late, error=error)
        if not abs(score.value) <= LARGEST:
            named = "reward.weights" if self.weights is not None else self.function or "reward.wrong_value"
            error = f"{named}: a reward of {score.value:g} is too large; {LARGEST:g} is the most"
            score = replace(score, value=self.wrong_value, parts={}, error=score.error or error)
            self.first_error = self.first_error or error
        self._ready.append((response.ticket, score))

    def _verdict(self, equal: bool, prediction: str | None) -> Score:
        return Score(correct=equal, value=1.0 if equal else self.wrong_value, answer=prediction)


def _asking_for(paths: Collection[str], name: str) -> frozenset[str]:
    """The reward functions that have a parameter of this name."""
    if not paths:
        return frozenset()
    from dapo_lit.rewards.signatures import asks_for

    return frozenset(path for path in paths if asks_for(path, name))
