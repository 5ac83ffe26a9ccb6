"""A resumable evaluation of one model on one benchmark: samples on disk are kept, missing ones are generated."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from transformers import PreTrainedModel

from dapo_lit.build.engine import build_engine
from dapo_lit.build.problem_sets import OpenBenchmark, open_benchmark
from dapo_lit.config.commands import EvaluateConfig
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.engines.protocol import RolloutEngine, token_bytes
from dapo_lit.evaluation.model_source import EvaluatedModel
from dapo_lit.evaluation.sample_store import read_samples, write_samples
from dapo_lit.evaluation.sampled import EvaluatedSample, Evaluation, evaluated_samples, summarise
from dapo_lit.files import write_text
from dapo_lit.preflight.policy import check_sampler
from dapo_lit.preflight.problems import try_rewards
from dapo_lit.preflight.prompts import check_prompts, check_tokenizer
from dapo_lit.preflight.table import Finding, run_checks
from dapo_lit.runs.run_folder import code_state, hardware, versions
from dapo_lit.screen import StatusLine

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
    benchmark = open_benchmark(
        config.benchmark,
        evaluated.tokenizer,
        evaluated.model.config,
        seed=config.seed,
        limit=config.limit,
        deadline_s=config.deadline_s,
        workers=config.workers,
    )
    for message in benchmark.messages:
        print(message, flush=True)
    folder = result_folder(config, evaluated, benchmark)
    with benchmark.verifier:
        samples = with_missing(config, evaluated, benchmark, folder)
        n = config.n or config.benchmark.samples
        return Result(evaluated.label, folder, summarise(benchmark.prompts, n, samples, benchmark.verifier), benchmark)


def result_folder(config: EvaluateConfig, evaluated: EvaluatedModel, benchmark: OpenBenchmark) -> Path:
    """<output>/<benchmark>/<model>-<8 digits>: evaluations with equal samples share a folder and extend it."""
    settings = benchmark.settings
    identity = {
        "weights": evaluated.digest,
        "dtype": str(evaluated.model.dtype),
        "engine": config.rollout.engine,
        "sampling": vars(benchmark.sampling),
        "rule": settings.rule,
        "extraction": settings.extraction,
        "deadline_s": config.deadline_s,
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    folder = Path(config.output) / settings.name / f"{evaluated.label}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    record = identity | {"benchmark": settings.model_dump(), **code_state(), "versions": versions()}
    write_text(folder / "evaluation.json", json.dumps(record | {"hardware": hardware()}, indent=2) + "\n")
    return folder


def with_missing(
    config: EvaluateConfig, evaluated: EvaluatedModel, benchmark: OpenBenchmark, folder: Path
) -> list[EvaluatedSample]:
    """The samples in the folder, after those that it lacked were generated in one engine call, so that its batch stays
    full."""
    done, n = read_samples(folder), config.n or config.benchmark.samples
    samples = list(done.values())
    wanted = {p.problem.id for p in benchmark.prompts}
    existing = sum(s.problem_id in wanted and s.sample_index < n for s in samples)
    total = len(benchmark.prompts) * n
    missing = total - existing
    if missing <= 0:
        print(f"all {total:,} samples are in {folder}")
        return samples
    if existing:
        print(f"{existing:,} of {total:,} samples are in {folder}; generating the rest", flush=True)
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
    print(f"sampling {missing:,} responses of up to {limit:,} tokens, {rows} at once", file=sys.stderr, flush=True)
    found = evaluated_samples(
        benchmark.prompts, n, engine(), benchmark.verifier, benchmark.decode, benchmark.sampling, done.keys()
    )
    saved_at = time.monotonic()
    try:
        for sample in followed(found, missing):
            samples.append(sample)
            if time.monotonic() - saved_at >= SAVE_EVERY_S:
                write_samples(folder, samples)
                saved_at = time.monotonic()
    finally:
        write_samples(folder, samples)  # an interrupt loses the unfinished ones only
        engine().close()
    return samples


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
            benchmark.prompts, PromptTemplate.load(settings.template), tokenizer, model, "benchmark.template"
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
