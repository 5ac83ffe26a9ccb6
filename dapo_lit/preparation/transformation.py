"""Answer transformation with a sampler: rewrites problems, then solves each rewriting several times to check it.

A rewriting is kept if more than half of its solutions give its integer (self-consistency). Rejects keep the reason and
the text. A problem whose answer is already an integer is kept unchanged.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import RolloutEngine, SampleRequest, Sampling
from dapo_lit.engines.samples import Sample, SampleKey, token_ids
from dapo_lit.preparation.rewriting import (
    Reason,
    RejectedError,
    Rewriting,
    check_rewriting,
    integer,
    parse_rewriting,
    question,
)
from dapo_lit.rewards.pool import Reference, Verifier

REWRITING_STEP, SOLVING_STEP = 0, 1
"""Used as rollout steps of the sample keys, so that rewriting and solving draw different noise."""


@dataclass(frozen=True)
class Transformed:
    """A problem with an integer answer; `rewriting` is None if it already had one."""

    original: Problem
    rewriting: Rewriting | None
    answer: int
    num_solutions: int
    """Solutions sampled; 0 without rewriting."""
    num_agreeing: int
    """Solutions that give `answer`."""

    def row(self) -> dict[str, Any]:
        """A row of a problem file, with the original problem in further columns."""
        rewriting = self.rewriting
        return {
            "id": self.original.id,
            "problem": rewriting.statement if rewriting else self.original.problem,
            "answer": str(self.answer),
            "rewritten": rewriting is not None,
            "original_problem": self.original.problem,
            "original_answer": self.original.answer,
            "answer_format": rewriting.answer_format if rewriting else None,
            "solution": rewriting.solution if rewriting else None,
            "num_solutions": self.num_solutions,
            "num_agreeing": self.num_agreeing,
        }


@dataclass(frozen=True)
class Reject:
    original: Problem
    reason: Reason
    detail: str
    text: str
    """The model's text."""

    def row(self) -> dict[str, Any]:
        original = {"id": self.original.id, "problem": self.original.problem, "answer": self.original.answer}
        return {**original, "reason": self.reason, "detail": self.detail, "text": self.text}


@dataclass(frozen=True)
class Transformer:
    """The engine, prompts and settings of a transformation.

    encode_rewriting, encode_solving: text to prompt ids, each with its template. attempts: rewritings sampled for each
    problem; the first usable one is checked. solutions: how often a rewritten problem is solved. verifier: reads a
    solution's answer and compares it with the integer.
    """

    engine: RolloutEngine
    encode_rewriting: Callable[[str], Sequence[int]]
    encode_solving: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    verifier: Verifier
    rewriting: Sampling
    solving: Sampling
    attempts: int
    solutions: int

    def transform(self, problems: Sequence[Problem], chunk: int = 64) -> Iterator[Transformed | Reject]:
        """One outcome a problem, in order; `chunk` problems are sampled at once."""
        for start in range(0, len(problems), chunk):
            yield from self._transform(problems[start : start + chunk])

    def _transform(self, problems: Sequence[Problem]) -> list[Transformed | Reject]:
        outcomes: dict[str, Transformed | Reject] = {}
        wanted = []
        for problem in problems:
            if (value := integer(problem.answer)) is not None:
                outcomes[problem.id] = Transformed(problem, None, value, 0, 0)
            else:
                wanted.append(problem)
        prompts = {problem.id: tuple(self.encode_rewriting(question(problem))) for problem in wanted}
        texts = self._sample(prompts, REWRITING_STEP, self.attempts, self.rewriting)
        usable: dict[str, Rewriting] = {}
        for problem in wanted:
            chosen = first_usable(problem, texts[problem.id])
            if isinstance(chosen, Reject):
                outcomes[problem.id] = chosen
            else:
                usable[problem.id] = chosen
        outcomes |= self._check([problem for problem in wanted if problem.id in usable], usable)
        return [outcomes[problem.id] for problem in problems]

    def _check(self, problems: Sequence[Problem], usable: dict[str, Rewriting]) -> dict[str, Transformed | Reject]:
        """Solves each rewritten problem; it is kept if more than half of the solutions give its integer."""
        prompts = {p.id: tuple(self.encode_solving(usable[p.id].statement)) for p in problems}
        solved = self._sample(prompts, SOLVING_STEP, self.solutions, self.solving)
        pairs = [(Reference(p.id, str(usable[p.id].answer)), text) for p in problems for text, _ in solved[p.id]]
        scores = self.verifier.score(pairs)
        outcomes: dict[str, Transformed | Reject] = {}
        for index, problem in enumerate(problems):
            rewriting = usable[problem.id]
            own = scores[index * self.solutions : (index + 1) * self.solutions]
            agreeing = sum(score.correct for score in own)
            if 2 * agreeing > self.solutions:
                outcomes[problem.id] = Transformed(problem, rewriting, rewriting.answer, self.solutions, agreeing)
                continue
            answers = Counter("no answer" if s.answer is None else s.answer[:40] for s in own)
            found = ", ".join(f"{answer} ({count})" for answer, count in answers.most_common(3))
            detail = f"{agreeing} of {self.solutions} solutions give {rewriting.answer}; found: {found}"
            outcomes[problem.id] = Reject(problem, "inconsistent", detail, rewriting.statement)
        return outcomes

    def _sample(
        self, prompts: dict[str, tuple[int, ...]], step: int, count: int, sampling: Sampling
    ) -> dict[str, list[tuple[str, bool]]]:
        """(text, finished) of `count` samples of every prompt, in the order of their indices."""
        requests = [
            SampleRequest(SampleKey(step, name, 0, index), token_ids(ids))
            for name, ids in prompts.items()
            for index in range(count)
        ]
        samples: dict[SampleKey, Sample] = {sample.key: sample for sample in self.engine.generate(requests, sampling)}
        texts: dict[str, list[tuple[str, bool]]] = {name: [] for name in prompts}
        for request in requests:
            sample = samples[request.key]
            texts[request.key.problem_id].append((self.decode(sample.response_ids.tolist()), sample.finished))
        return texts


def first_usable(problem: Problem, texts: Sequence[tuple[str, bool]]) -> Rewriting | Reject:
    """The first usable rewriting, or the reject of the first attempt if none is usable."""
    rejects = []
    for text, finished in texts:
        try:
            if not finished:
                raise RejectedError("unfinished", "the rewriting was cut off at the limit of tokens")
            rewriting = parse_rewriting(text)
            check_rewriting(problem, rewriting)
            return rewriting
        except RejectedError as error:
            rejects.append(Reject(problem, error.reason, str(error), text))
    return rejects[0]
