"""What a chain_sum base does before it is trained: the properties that make it a useful toy task."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from dapo_lit.engines.protocol import SampleKey, SampleRequest, Sampling
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.policy.load import eos_ids, load_model, load_tokenizer
from dapo_lit.tasks.chain_sum import Sums, has_written_steps, train_problems
from math_answers.extraction import extract


@dataclass(frozen=True)
class Answer:
    group: int
    num_terms: int
    text: str
    num_tokens: int
    finished: bool
    logprob: float
    correct: bool
    """Finished, and the number after the last # is the sum."""

    @property
    def written(self) -> bool:
        return has_written_steps(self.text)


def sample(folder: Path, sums: Sums, *, num_problems: int, group: int, limit: int, seed: int = 0) -> list[Answer]:
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    engine = TorchEngine(model.config, eos_ids=eos_ids(model, tokenizer))
    engine.sync_weights(model.state_dict().items(), version=0)
    problems = {p.id: (index, p) for index, p in enumerate(train_problems(num_problems, seed + 1000, sums))}
    requests = [
        SampleRequest(SampleKey(0, p.id, 0, i), tuple(tokenizer.encode(p.problem)))
        for _, p in problems.values()
        for i in range(group)
    ]
    answers = []
    for s in engine.generate(requests, Sampling(max_response_tokens=limit, seed=seed)):
        index, problem = problems[s.key.problem_id]
        text = tokenizer.decode(s.response_ids.tolist(), skip_special_tokens=True)
        correct = s.finished and extract(text, "hash") == problem.answer
        terms = int(str(problem.meta["num_terms"]))
        answers.append(
            Answer(index, terms, text, len(s.response_ids), s.finished, sum(s.rollout_logprobs.tolist()), correct)
        )
    return answers


def measure(answers: Sequence[Answer]) -> dict[str, float]:
    """`..._by_terms`: mean over the numbers of terms that have both kinds of answers, each weighing the same."""
    written = [a for a in answers if a.written]
    immediate = [a for a in answers if not a.written]
    terms = sorted({a.num_terms for a in written} & {a.num_terms for a in immediate})
    groups: dict[int, list[bool]] = {}
    for a in answers:
        groups.setdefault(a.group, []).append(a.correct)

    def by_terms(chosen: Sequence[Answer]) -> float:
        return fmean(fmean(a.correct for a in chosen if a.num_terms == n) for n in terms)

    return {
        "accuracy": fmean(a.correct for a in answers),
        "truncated": fmean(not a.finished for a in answers),
        "written": len(written) / len(answers),
        "finished written right": fmean(a.correct for a in written if a.finished),
        "immediate right": fmean(a.correct for a in immediate),
        "written_by_terms": by_terms(written),
        "immediate_by_terms": by_terms(immediate),
        "groups all wrong": fmean(not any(g) for g in groups.values()),
        "groups all right": fmean(all(g) for g in groups.values()),
        "shortest": min(a.num_tokens for a in answers),
        "longest": max(a.num_tokens for a in answers),
        "entropy": -sum(a.logprob for a in answers) / sum(a.num_tokens for a in answers),
    }
