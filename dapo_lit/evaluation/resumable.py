"""A resumable evaluation of one model on one benchmark: samples on disk are kept, missing ones are generated."""

import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rich.console import Console
from transformers import PreTrainedModel

from dapo_lit.build.benchmarks import OpenBenchmark, open_benchmark
from dapo_lit.build.engine import build_engine
from dapo_lit.config.evaluate import EvaluateConfig
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.engines.protocol import RolloutEngine
from dapo_lit.evaluation.model_source import EvaluatedModel
from dapo_lit.evaluation.sample_store import SampleFiles
from dapo_lit.evaluation.sampled import EvaluatedSample, Evaluation, evaluated_samples, summarise
from dapo_lit.files import write_text
from dapo_lit.preflight.policy import check_sampler
from dapo_lit.preflight.rewards import try_rewards
from dapo_lit.preflight.table import Finding, run_checks
from dapo_lit.preflight.tokenizer import check_prompts, check_vocabulary
from dapo_lit.runs.run_folder import code_state, hardware, versions

PLAIN_EVERY_S = 15.0
"""Seconds between progress lines if the output is not a terminal."""
SHARE_BEFORE_ETA = 0.1
"""Share of the samples before which no time is estimated: short responses of a batch end first."""


@dataclass(frozen=True)
class Result:
    """One finished evaluation."""

    label: str
    folder: Path
    evaluation: Evaluation
    benchmark: OpenBenchmark


def evaluate_model(config: EvaluateConfig, evaluated: EvaluatedModel) -> Result:
    """Generates the missing samples and returns the evaluation of all; a kill loses at most `save_every_s` seconds."""
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
        sample_missing(config, evaluated, benchmark, folder)
        samples = SampleFiles(folder).read().values()
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


def sample_missing(config: EvaluateConfig, evaluated: EvaluatedModel, benchmark: OpenBenchmark, folder: Path) -> None:
    """Generates and saves the samples that the folder lacks, in one engine call so that its batch stays full."""
    files, n = SampleFiles(folder), config.n or config.benchmark.samples
    done = files.read()
    wanted = {p.problem.id for p in benchmark.prompts}
    existing = sum(s.problem_id in wanted and s.sample_index < n for s in done.values())
    total = len(benchmark.prompts) * n
    missing = total - existing
    if missing <= 0:
        print(f"all {total:,} samples are in {folder}")
        files.merge()
        return
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
    samples = evaluated_samples(
        benchmark.prompts, n, engine(), benchmark.verifier, benchmark.decode, benchmark.sampling, done.keys()
    )
    progress, unsaved, saved_at = Progress(missing), list[EvaluatedSample](), time.monotonic()
    try:
        for sample in samples:
            unsaved.append(sample)
            progress.add(sample)
            if time.monotonic() - saved_at >= config.save_every_s:
                files.append(unsaved)
                unsaved, saved_at = [], time.monotonic()
    finally:
        files.append(unsaved)  # an interrupt loses the unfinished samples only
        progress.close()
        engine().close()
    files.merge()


def checks(
    evaluated: EvaluatedModel, benchmark: OpenBenchmark, engine: Callable[[], RolloutEngine]
) -> dict[str, Callable[[], Finding]]:
    """What is tried out before the first sample; the reference answers were checked when the benchmark was opened."""
    model, tokenizer, settings = evaluated.model, evaluated.tokenizer, benchmark.settings
    problems = [prompt.problem for prompt in benchmark.prompts]
    shortest = min((prompt.ids for prompt in benchmark.prompts), key=len)

    def weights() -> Finding:
        dtype = str(model.dtype).removeprefix("torch.")
        return Finding(f"{model.config.model_type}, {model.num_parameters():,} parameters in {dtype}")

    def check_tokenizer() -> Finding:
        check_vocabulary(tokenizer, model, evaluated.label)
        check_prompts(problems, PromptTemplate.load(settings.template), tokenizer, model, "benchmark.template")
        return Finding(f"{len(tokenizer):,} tokens; it expresses the template and {len(problems):,} problems")

    return {
        "weights": weights,
        "tokenizer": check_tokenizer,
        "rewards": lambda: try_rewards(benchmark.verifier, problems, settings.extraction),
        "sampler": lambda: check_sampler(engine(), model, shortest, benchmark.sampling.max_response_tokens),
    }


def batch_size(config: EvaluateConfig, model: PreTrainedModel, benchmark: OpenBenchmark) -> int:
    """Sequences decoded at once: rollout.max_batch_size, or fewer if their keys and values would exceed `cache_gb`."""
    policy, rollout = model.config, config.rollout
    heads = getattr(policy, "num_key_value_heads", None) or policy.num_attention_heads
    head_dim = getattr(policy, "head_dim", None) or policy.hidden_size // policy.num_attention_heads
    token_bytes = 2 * policy.num_hidden_layers * heads * head_dim * model.dtype.itemsize
    tokens = int(config.cache_gb * 1e9 / token_bytes)
    return max(1, min(rollout.max_batch_size, tokens // benchmark.max_tokens))


class Progress:
    """Prints samples done, accuracy so far and time left, as one updated line on a terminal or as occasional lines."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.clock = total, clock
        self.done = self.correct = self.tokens = 0
        self.started = self.printed = clock()
        self.console = Console(stderr=True)

    def add(self, sample: EvaluatedSample) -> None:
        self.done += 1
        self.correct += sample.correct
        self.tokens += sample.num_tokens
        every = 0.5 if self.console.is_terminal else PLAIN_EVERY_S
        if self.clock() - self.printed >= every:
            self.printed = self.clock()
            end = "\r" if self.console.is_terminal else "\n"
            self.console.file.write(f"{self.line():<110}{end}" if end == "\r" else f"{self.line()}\n")
            self.console.file.flush()

    def line(self) -> str:
        """Short responses end first, so accuracy and time left are biased at the start."""
        seconds = max(1e-9, self.clock() - self.started)
        if self.done < self.total * SHARE_BEFORE_ETA:
            left = "time left not yet known"
        else:
            left = f"about {duration((self.total - self.done) * seconds / self.done)} left"
        return (
            f"{self.done:,}/{self.total:,} samples, {self.tokens / seconds:,.0f} tokens/s, "
            f"{self.correct / self.done:.3f} right so far, {left}"
        )

    def close(self) -> None:
        if self.console.is_terminal and self.done:
            self.console.file.write("\n")
        if self.done:
            seconds = self.clock() - self.started
            print(f"{self.done:,} samples, {self.tokens:,} tokens in {duration(seconds)}", file=sys.stderr)


def duration(seconds: float) -> str:
    """
    >>> duration(59.6), duration(3700)
    ('1 min 00 s', '1 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
