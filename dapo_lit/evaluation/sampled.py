"""Sampled evaluation: k responses to each problem; avg@k, unbiased pass@k and cons@k."""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pydantic import with_config

from ablations.border import EXACT, Flag, Number, Step
from ablations.screen import with_status
from dapo_lit.engines.protocol import (
    EVALUATION_STEP,
    RolloutEngine,
    Sample,
    SampleKey,
    SampleRequest,
    Sampling,
    run_to_end,
)
from dapo_lit.evaluation.voting import VoteCounts, average, consensus, pass_at_k, vote_counts
from dapo_lit.ranks import SINGLE_PROCESS, Ranks
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.score import Score
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rollout.episodes import asked
from dapo_lit.rollout.records import Prompt

SampleName = tuple[str, str, int]
"""(problem id, question digest, sample index)."""


@with_config(EXACT)
@dataclass(frozen=True)
class EvaluatedSample:
    """One scored response, a row of the tables on disk."""

    problem_id: str
    question_digest: str
    """Hash of the prompt and the reference answer, so that cached samples of an edited question are not reused."""
    sample_index: Step
    response: str
    extracted: str | None
    """The answer that was found in the response."""
    correct: Flag
    timed_out: Flag
    """The verifier's deadline passed: `correct` means nothing."""
    num_tokens: Step
    """Includes the EOS token."""
    truncated: Flag
    logprob: Number
    """Log-prob of the whole response in nats, under the distribution that it was sampled from."""
    failed: Flag = False
    """The verifier failed: `correct` means nothing."""
    scored_by: str | None = None
    """What gave the verdict, where samples are kept for later evaluations (`resumable.judge`); None: not known."""

    @property
    def missing(self) -> bool:
        """True if there is no verdict."""
        return self.timed_out or self.failed

    @property
    def name(self) -> SampleName:
        return self.problem_id, self.question_digest, self.sample_index


@dataclass(frozen=True)
class Evaluation:
    """The samples of an evaluation, problem by problem, k each."""

    samples: list[EvaluatedSample]
    """The same number for every problem, at least k."""
    k: int
    """avg@k and pass@k are estimated from all samples of a problem; cons@k takes its first k."""
    vote_counts: list[VoteCounts]
    """One a problem, in the order of the samples, of all its samples with a verdict."""
    first_votes: list[VoteCounts]
    """The same of its first k."""

    def metrics(self, benchmark: str) -> dict[str, float]:
        """`eval/<benchmark>/...`: means over problems, length and entropy over responses and tokens.

        Samples without a verdict are left out of the accuracies, and a problem without any verdict with them: a problem
        with fewer than k verdicts gives its pass@ of as many as there are.
        """
        k, lengths = self.k, [s.num_tokens for s in self.samples]
        votes = [b for b in self.vote_counts if b.num_samples]
        if not votes:
            raise ValueError(f"{benchmark}: not one of {len(self.samples)} responses has a verdict; fix the reward")
        values = {
            f"avg@{k}": fmean(average(b) for b in votes),
            f"pass@{k}": fmean(pass_at_k(b.num_samples, b.right, min(k, b.num_samples)) for b in votes),
            f"cons@{k}": fmean(consensus(b) for b in self.first_votes if b.num_samples),
            "missing_frac": fmean(s.missing for s in self.samples),
            "length_mean": fmean(lengths),
            "truncated_frac": fmean(s.truncated for s in self.samples),
            "entropy": -sum(s.logprob for s in self.samples) / sum(lengths),
        }
        return {f"eval/{benchmark}/{key}": float(value) for key, value in values.items()}


def evaluate(
    prompts: Sequence[Prompt],
    k: int,
    engine: RolloutEngine,
    verifier: Verifier,
    decode: Callable[[Sequence[int]], str],
    sampling: Sampling,
    ranks: Ranks = SINGLE_PROCESS,
    num_samples: int | None = None,
    gives_up: Callable[[int], bool] = lambda waiting: False,
) -> Evaluation:
    """Samples and scores k responses to every prompt with the engine's weights; ranks share the prompts.

    num_samples: responses to every prompt, at least k, from which the metrics @k are estimated; None: k.
    gives_up: called with the number of samples without a verdict, between steps of the engine and while verdicts are
        awaited; it may raise.
    """
    n = num_samples or k
    own = [prompts[position] for position in ranks.own(prompts)]
    found = evaluated_samples(own, n, engine, verifier, decode, sampling, gives_up=gives_up)
    samples = list(with_status(found, len(own) * n, "evaluation", "samples"))
    parts = ranks.gather(samples if ranks.leads_engine else [])
    return summarise(prompts, k, [sample for part in parts for sample in part], verifier, n)


def evaluated_samples(
    prompts: Sequence[Prompt],
    k: int,
    engine: RolloutEngine,
    verifier: Verifier,
    decode: Callable[[Sequence[int]], str],
    sampling: Sampling,
    done: Collection[SampleName] = (),
    gives_up: Callable[[int], bool] = lambda waiting: False,
) -> Iterator[EvaluatedSample]:
    """Yields each sample when it is scored, except those named in `done`.

    A sample's noise depends only on seed, problem and index, so an interrupted evaluation gives the same samples.
    """
    digests = {p.problem.id: question_digest(p) for p in prompts}
    problems = {prompt.problem.id: prompt.problem for prompt in prompts}
    requests = [
        SampleRequest(SampleKey(EVALUATION_STEP, p.problem.id, 0, index), p.ids)
        for p in prompts
        for index in range(k)
        if (p.problem.id, digests[p.problem.id], index) not in done
    ]
    if not requests:
        return
    unscored: dict[SampleKey, tuple[Sample, str]] = {}

    def scored(scores: Iterable[tuple[Any, Score]]) -> Iterator[EvaluatedSample]:
        for key, score in scores:
            sample, text = unscored.pop(key)
            yield EvaluatedSample(
                problem_id=key.problem_id,
                question_digest=digests[key.problem_id],
                sample_index=key.sample_index,
                response=text,
                extracted=score.answer,
                correct=score.correct,
                timed_out=score.timed_out,
                failed=score.error is not None or sample.failure is not None,
                num_tokens=len(sample.response_ids),
                truncated=not sample.finished,
                logprob=sum(sample.rollout_logprobs.tolist()),
            )

    # A reward may ask for all samples of a problem together.
    sizes = Counter(request.key.problem_id for request in requests)
    held: dict[str, list[tuple[SampleKey, RewardProblem, str]]] = {}
    stream = engine.open(sampling)
    stream.submit(requests)
    # Between steps, not samples: the first long response may end after the grace period of a stop.
    for sample in run_to_end(stream, lambda: gives_up(len(unscored))):
        problem = asked(problems[sample.key.problem_id], sample, decode, with_ids=verifier.wants_ids)
        text = decode(sample.row_ids.tolist())
        unscored[sample.key] = sample, text
        group = held.setdefault(problem.id, [])
        group.append((sample.key, problem, text))
        if not verifier.wants_groups or len(group) == sizes[problem.id]:
            # By index, so that the function gets the same batch whichever sample ended first.
            whole = sorted(held.pop(problem.id), key=lambda each: each[0].sample_index)
            verifier.submit_group(whole)
        yield from scored(verifier.collect())
    yield from scored(verifier.drain(gives_up))


def summarise(
    prompts: Sequence[Prompt],
    k: int,
    samples: Iterable[EvaluatedSample],
    verifier: Verifier,
    num_samples: int | None = None,
) -> Evaluation:
    """The evaluation of the first `num_samples` samples (None: k) of every prompt."""
    n = num_samples or k
    found = {s.name: s for s in samples}
    names = sample_names(prompts, n)
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{len(missing)} samples are missing, the first is sample {missing[0][2]} of {missing[0][0]}")
    ordered = [found[name] for name in names]
    rows = [ordered[start : start + n] for start in range(0, len(ordered), n)]
    votes = vote_counts([_answers(row) for row in rows], verifier.equivalent)
    first = votes if n == k else vote_counts([_answers(row[:k]) for row in rows], verifier.equivalent)
    return Evaluation(ordered, k, votes, first)


def _answers(samples: Iterable[EvaluatedSample]) -> list[tuple[str | None, bool]]:
    return [(s.extracted, s.correct) for s in samples if not s.missing]


def sample_names(prompts: Iterable[Prompt], num_samples: int) -> list[SampleName]:
    """The names of the first samples of every prompt, problem by problem."""
    digests = [(prompt.problem.id, question_digest(prompt)) for prompt in prompts]
    return [(*digest, index) for digest in digests for index in range(num_samples)]


def question_digest(prompt: Prompt) -> str:
    """Hash of the prompt's tokens and the reference answer, 16 hexadecimal digits."""
    text = f"{','.join(map(str, prompt.ids))}|{prompt.problem.answer}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
