"""Score responses: in process where that takes microseconds, in killable worker processes where it may not end."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from dapo_lit.rewards.equivalence import Rule, check_reference, decide
from dapo_lit.rewards.extraction import Extraction, extract
from dapo_lit.rewards.score import Score

Ticket = Hashable


@dataclass(frozen=True)
class Reference:
    """What a response is checked against.

    >>> Reference(problem_id="gsm8k-0", answer="5").answer
    '5'
    """

    problem_id: str
    answer: str
    problem: str = ""
    """The statement; the built-in rules do not read it, custom rewards may."""
    meta: Mapping[str, object] = field(default_factory=dict)


class Verifier:
    """Turns (reference, response) pairs into scores: +1 if equivalent, else `wrong_value` (DAPO Eq. 7).

    >>> with Verifier(rule="numeric", extraction="hash") as verifier:
    ...     verifier.score([(Reference("a", "20"), "7+4=11;11+9=20;#20")])[0].value
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
        if not math.isfinite(wrong_value) or wrong_value >= 1.0:
            raise ValueError(f"wrong_value must be a number below 1 (the value of a right answer), not {wrong_value}")
        if deadline_s <= 0 or workers < 1:
            raise ValueError(f"deadline_s and workers must be positive, not {deadline_s} and {workers}")
        self.rule, self.extraction, self.wrong_value = rule, extraction, wrong_value
        self._ready: list[tuple[Ticket, Score]] = []

    def submit(self, ticket: Ticket, reference: Reference, text: str) -> None:
        """Queue one response; returns at once. Its score comes back under `ticket` from `collect` or `drain`."""
        prediction = extract(text, self.extraction)
        equal = prediction is not None and decide(prediction, reference.answer, self.rule)
        if equal is None:
            raise NotImplementedError("the symbolic comparison")
        self._ready.append((ticket, self._score(equal, prediction)))

    def collect(self) -> list[tuple[Ticket, Score]]:
        """The scores that are ready, in the order they became so; never waits."""
        ready, self._ready = self._ready, []
        return ready

    def drain(self) -> list[tuple[Ticket, Score]]:
        """The scores of everything submitted and not yet collected; waits for them."""
        return self.collect()

    def score(self, pairs: Sequence[tuple[Reference, str]]) -> list[Score]:
        """The scores of `pairs`, in their order."""
        for index, (reference, text) in enumerate(pairs):
            self.submit(index, reference, text)
        scores = dict(self.drain())
        return [scores[index] for index in range(len(pairs))]

    def check_answer(self, answer: str) -> str | None:
        """None if `answer` can serve as a reference under the rule, else what is wrong with it."""
        return check_reference(answer, self.rule)

    def close(self) -> None:
        """End the worker processes; the verifier cannot be used afterwards."""

    def __enter__(self) -> "Verifier":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _score(self, equal: bool, prediction: str | None) -> Score:
        return Score(correct=equal, value=1.0 if equal else self.wrong_value, answer=prediction)
