"""Sampled evaluation: k responses to each problem, avg@k, unbiased pass@k, cons@k."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

from dapo_lit.rewards.pool import Reference, Verifier
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.collect import Prompt
from dapo_lit.rollout.engine import RolloutEngine, SampleRequest, Sampling
from dapo_lit.rollout.records import Sample, SampleKey

EVALUATION_STEP = -1
"""In the place of the rollout step: every evaluation of a run draws the same noise, whatever the step."""


@dataclass(frozen=True)
class EvaluatedSample:
    problem_id: str
    sample: Sample
    text: str
    score: Score


@dataclass(frozen=True)
class Evaluation:
    """All samples, problem by problem."""

    samples: list[EvaluatedSample]
    k: int

    def metrics(self, benchmark: str) -> dict[str, float]:
        """`eval/<benchmark>/...`: means over problems."""
        problems: dict[str, list[EvaluatedSample]] = {}
        for sample in self.samples:
            problems.setdefault(sample.problem_id, []).append(sample)
        rows = list(problems.values())
        lengths = [len(s.sample.response_ids) for s in self.samples]
        values = {
            f"avg@{self.k}": fmean(fmean(s.score.correct for s in row) for row in rows),
            f"pass@{self.k}": fmean(pass_at_k(len(row), sum(s.score.correct for s in row), self.k) for row in rows),
            f"cons@{self.k}": fmean(consensus(row) for row in rows),
            "length_mean": fmean(lengths),
            "truncated_frac": fmean(not s.sample.finished for s in self.samples),
            "entropy": -sum(sum(s.sample.rollout_logprobs) for s in self.samples) / sum(lengths),
        }
        return {f"eval/{benchmark}/{key}": float(value) for key, value in values.items()}


def evaluate(
    prompts: Sequence[Prompt],
    k: int,
    engine: RolloutEngine,
    verifier: Verifier,
    decode: Callable[[Sequence[int]], str],
    sampling: Sampling,
) -> Evaluation:
    """Samples k responses to every prompt with the engine's weights and scores them."""
    requests = [SampleRequest(SampleKey(EVALUATION_STEP, p.problem.id, 0, i), p.ids) for p in prompts for i in range(k)]
    references = {
        p.problem.id: Reference(p.problem.id, p.problem.answer, p.problem.problem, p.problem.meta) for p in prompts
    }
    done: dict[SampleKey, tuple[Sample, str]] = {}
    for sample in engine.generate(requests, sampling):
        text = decode(sample.response_ids)
        done[sample.key] = (sample, text)
        verifier.submit(sample.key, references[sample.key.problem_id], text)
    scores = dict(verifier.drain())
    return Evaluation(
        [EvaluatedSample(r.key.problem_id, *done[r.key], scores[r.key]) for r in requests],
        k,
    )


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate of the probability that one of k samples is right (Chen et al. 2021, arXiv 2107.03374, Eq. 1).

    >>> pass_at_k(num_samples=4, num_correct=1, k=2)
    0.5
    """
    return 1 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def consensus(row: Sequence[EvaluatedSample]) -> float:
    """1 if the most frequent answer is right; ties are split evenly. No answer is no vote.

    Answers are the same when their texts are; a right one stands for all right ones.
    """
    votes = Counter(
        "right" if s.score.correct else f"wrong {s.score.answer}" for s in row if s.score.answer is not None
    )
    if not votes:
        return 0.0
    most = max(votes.values())
    winners = [answer for answer, count in votes.items() if count == most]
    return ("right" in winners) / len(winners)
