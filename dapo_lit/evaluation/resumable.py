"""A resumable evaluation of one model on one benchmark: samples on disk are kept, missing ones are generated."""

import glob
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import with_config
from transformers import PreTrainedModel
from typing_extensions import TypedDict  # pydantic's until Python 3.12

from ablations.border import OPEN, Day, checked
from ablations.ending import keeping
from ablations.errors import DamagedError
from ablations.files.atomic import write_text
from ablations.inputs import differing
from ablations.screen import StatusLine
from ablations.texts import json_tree, read_bytes
from dapo_lit.build.engine import build_engine
from dapo_lit.build.problem_sets import OpenBenchmark, open_benchmark
from dapo_lit.chat_template import today
from dapo_lit.config import ConfigError
from dapo_lit.config.commands import EvaluateConfig
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.engines.protocol import RolloutEngine, token_bytes
from dapo_lit.evaluation.model_source import EvaluatedModel
from dapo_lit.evaluation.sample_store import read_samples, write_samples
from dapo_lit.evaluation.sampled import (
    EvaluatedSample,
    Evaluation,
    SampleName,
    evaluated_samples,
    question_digest,
    sample_names,
    summarise,
)
from dapo_lit.log import log
from dapo_lit.preflight.policy import check_sampler
from dapo_lit.preflight.problems import try_rewards
from dapo_lit.preflight.prompts import check_prompts, check_tokenizer
from dapo_lit.preflight.table import Finding, run_checks
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.runs.code_state import code_state, scoring_hash
from dapo_lit.runs.run_folder import hardware, versions

EVALUATION = "evaluation.json"
"""What a folder of samples was made with; `questions` are those of the last evaluation, by problem."""
SAVE_EVERY_S = 60.0
"""Seconds between writes of the samples so far."""


@dataclass(frozen=True)
class Result:
    """One finished evaluation."""

    label: str
    folder: Path
    evaluation: Evaluation
    benchmark: OpenBenchmark


def evaluate_model(config: EvaluateConfig, evaluated: EvaluatedModel) -> Result:
    """Generates the missing samples and returns the evaluation of all; a kill loses at most a minute of them."""
    day = prompt_day(Path(config.output) / config.benchmark.name, evaluated.day)
    benchmark = open_benchmark(
        config.benchmark,
        evaluated.tokenizer,
        evaluated.model,
        seed=config.seed,
        limit=config.limit,
        deadline_s=config.deadline_s,
        workers=config.workers,
        day=day,
    )
    for message in benchmark.messages:
        log.info(message)
    folder = result_folder(config, evaluated, benchmark, day)
    with benchmark.verifier:
        samples = with_missing(config, evaluated, benchmark, folder)
        n = config.n or config.benchmark.samples
        return Result(evaluated.label, folder, summarise(benchmark.prompts, n, samples, benchmark.verifier), benchmark)


def prompt_day(folder: Path, of_run: date | None) -> date:
    """The date in prompts whose chat template writes one: the run's, else that of the first evaluation in a folder, so
    that the models compared there read the same prompts."""
    records = (_read_evaluation(file.parent) for file in sorted(folder.glob(f"*/{EVALUATION}")))
    known = of_run or min((date.fromisoformat(r["prompt_date"]) for r in records if "prompt_date" in r), default=None)
    return known or today()


@with_config(OPEN)
class Stored(TypedDict, total=False):
    """evaluation.json, as far as it is read again."""

    prompt_date: Day


def _read_evaluation(folder: Path) -> dict[str, Any]:
    """evaluation.json; {} where there is none or it cannot be read: nothing in it decides a sample."""
    try:
        return {**checked(json_tree(read_bytes(folder / EVALUATION), EVALUATION), Stored, EVALUATION)}
    except (OSError, DamagedError):
        return {}


def result_folder(config: EvaluateConfig, evaluated: EvaluatedModel, benchmark: OpenBenchmark, day: date) -> Path:
    """<output>/<benchmark>/<model>-<8 digits>: evaluations with equal samples share a folder and extend it.

    What judges them, `judge`, is no part of it: another rule scores the samples that are there.

    Raises ConfigError: the samples in it were made with another tokenizer, which the weights do not show.
    """
    settings = benchmark.settings
    identity: dict[str, Any] = {
        "weights": evaluated.digest,
        "dtype": str(evaluated.model.dtype),
        "engine": config.rollout.engine,
        "sampling": vars(benchmark.sampling),
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    folder = Path(config.output) / settings.name / f"{evaluated.label}-{digest}"
    if not folder.exists():
        # Earlier versions had the rule and the deadline in the digest: such a folder has the same samples.
        earlier = sorted(folder.parent.glob(f"{glob.escape(evaluated.label)}-????????"))
        folder = next((each for each in earlier if identity.items() <= _read_evaluation(each).items()), folder)
    folder.mkdir(parents=True, exist_ok=True)
    digest = evaluated.tokenizer_digest
    before, inputs = _read_evaluation(folder), {"tokenizer": digest} if digest else {}
    if differing(before.get("inputs") or {}, inputs):
        raise ConfigError(
            f"the samples in {folder} were made with another tokenizer than {evaluated.label} has now; restore its "
            "tokenizer files, or name another folder, output=..."
        )
    record = identity | {"rule": settings.rule, "extraction": settings.extraction, "deadline_s": config.deadline_s}
    record |= {"inputs": inputs, "prompt_date": day.isoformat(), "benchmark": settings.model_dump()}
    record |= {"questions": {prompt.problem.id: question_digest(prompt) for prompt in benchmark.prompts}}
    record |= {**code_state(), "versions": versions(), "hardware": hardware()}
    write_text(folder / EVALUATION, json.dumps(record, indent=2) + "\n")
    return folder


def with_missing(
    config: EvaluateConfig, evaluated: EvaluatedModel, benchmark: OpenBenchmark, folder: Path
) -> list[EvaluatedSample]:
    """The samples in the folder, after those that it lacked were generated in one engine call, so that its batch stays
    full."""
    done, n = with_present_verdicts(folder, benchmark), config.n or config.benchmark.samples
    samples = list(done.values())  # also those of questions as they were before an edit: they may come back
    wanted = set(sample_names(benchmark.prompts, n))
    existing = len(wanted & done.keys())
    total = len(wanted)
    missing = total - existing
    if missing <= 0:
        log.info(f"all {total:,} samples are in {folder}")
        return samples
    if existing:
        log.info(f"{existing:,} of {total:,} samples are in {folder}; generating the rest")
    rows = batch_size(config, evaluated.model, benchmark)
    limit = benchmark.sampling.max_response_tokens

    @cache
    def engine() -> RolloutEngine:
        rollout = config.rollout.model_copy(update={"max_batch_size": rows})
        built = build_engine(evaluated.model, evaluated.tokenizer, rollout, max_tokens=benchmark.max_tokens)
        built.sync_weights(evaluated.model.state_dict().items(), 0)
        return built

    if config.preflight:
        run_checks(checks(evaluated, benchmark, engine))
    with keeping(lambda: f"{len(samples):,} of {total:,} samples are in {folder}, and the same command continues"):
        log.info(f"sampling {missing:,} responses of up to {limit:,} tokens, {rows} at once")
        found = evaluated_samples(
            benchmark.prompts, n, engine(), benchmark.verifier, benchmark.decode, benchmark.sampling, done.keys()
        )
        saved_at = time.monotonic()
        try:
            for sample in followed(found, missing):
                samples.append(replace(sample, scored_by=judge(benchmark.verifier)))
                if time.monotonic() - saved_at >= SAVE_EVERY_S:
                    write_samples(folder, samples)
                    saved_at = time.monotonic()
        finally:
            write_samples(folder, samples)  # an interrupt loses the unfinished ones only
            engine().close()
    return samples


def with_present_verdicts(folder: Path, benchmark: OpenBenchmark) -> dict[SampleName, EvaluatedSample]:
    """The samples in the folder; responses without a verdict, or that something else judged, are scored again, so that
    verdicts can be compared.

    Those of questions that are not asked now keep their verdicts until they are: their references are not known here.
    """
    done, now = read_samples(folder), judge(benchmark.verifier)
    asked = {(p.problem.id, question_digest(p)): p.problem for p in benchmark.prompts}
    old = [s for s in done.values() if s.name[:2] in asked and (s.missing or s.scored_by != now)]
    if not old:
        return done
    problems = [asked[sample.name[:2]] for sample in old]
    references = [RewardProblem(p.id, p.problem, p.answer, p.meta) for p in problems]
    scores = benchmark.verifier.score([(r, s.response) for r, s in zip(references, old, strict=True)])
    again = [
        replace(
            sample,
            extracted=score.answer,
            correct=score.correct,
            timed_out=score.timed_out,
            failed=score.error is not None,
            scored_by=now,
        )
        # A verdict that came late this time is no better than one of the same rule that is there.
        for sample, score in zip(old, scores, strict=True)
        if not score.missing or sample.missing or rule_of(sample.scored_by) != rule_of(now)
    ]
    before = [done[sample.name] for sample in again]
    changed = sum((a.correct, a.missing) != (b.correct, b.missing) for a, b in zip(before, again, strict=True))
    log.info(
        f"{len(old):,} responses in {folder} had no verdict, or one by another rule, deadline or code; scored again, "
        f"{changed:,} verdicts changed"
    )
    done |= {sample.name: sample for sample in again}
    write_samples(folder, done.values())
    return done


def judge(verifier: Verifier) -> str:
    """What a verdict depends on besides the response: rule, extraction, deadline and a digest of the scoring code."""
    return f"{verifier.rule} {verifier.extraction} {verifier.deadline_s:g} {scoring_hash()}"


def rule_of(scored_by: str | None) -> list[str]:
    """Rule and extraction of what `judge` has written; earlier versions wrote the digest only, or nothing."""
    return (scored_by or "").split()[:2]


def checks(
    evaluated: EvaluatedModel, benchmark: OpenBenchmark, engine: Callable[[], RolloutEngine]
) -> dict[str, Callable[[], Finding]]:
    """The checks before the first sample; the reference answers were checked when the benchmark was opened."""
    model, tokenizer, settings = evaluated.model, evaluated.tokenizer, benchmark.settings
    problems = [prompt.problem for prompt in benchmark.prompts]
    shortest = min((prompt.ids for prompt in benchmark.prompts), key=len)

    def weights() -> Finding:
        dtype = str(model.dtype).removeprefix("torch.")
        return Finding(f"{model.config.model_type}, {model.num_parameters():,} parameters in {dtype}")

    return {
        "weights": weights,
        "tokenizer": lambda: check_tokenizer(tokenizer, model, evaluated.label),
        "prompts": lambda: check_prompts(
            benchmark.prompts,
            PromptTemplate.load(settings.template),
            tokenizer,
            model,
            "benchmark.template",
            "benchmark.path",
        ),
        "rewards": lambda: try_rewards(benchmark.verifier, problems, settings.extraction),
        "sampler": lambda: check_sampler(engine(), model, shortest, benchmark.sampling.max_response_tokens),
    }


def batch_size(config: EvaluateConfig, model: PreTrainedModel, benchmark: OpenBenchmark) -> int:
    """Sequences decoded at once: rollout.max_batch_size, or fewer if their keys and values would exceed `cache_gb`."""
    tokens = int(config.cache_gb * 1e9 / token_bytes(model.config, model.dtype))
    return max(1, min(config.rollout.max_batch_size, tokens // benchmark.max_tokens))


def followed(samples: Iterable[EvaluatedSample], total: int) -> Iterator[EvaluatedSample]:
    """Yields the samples; a status line says how many are done.

    Short responses end first, so the accuracy so far and the time left are biased at the start.
    """
    right = tokens = 0
    with StatusLine("evaluation") as line:
        for done, sample in enumerate(samples, start=1):
            right, tokens = right + sample.correct, tokens + sample.num_tokens
            rate = tokens / max(time.monotonic() - line.started, 1e-9)
            words = f"{done:,} of {total:,} samples, {rate:,.0f} tokens/s, {right / done:.3f} right so far"
            line.update(done, total, words)
            yield sample
