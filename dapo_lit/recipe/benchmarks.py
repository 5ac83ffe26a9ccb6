"""A benchmark ready to be asked: its problems as prompts of one policy, its verifier, its limit within the context."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from dapo_lit.config import ConfigError
from dapo_lit.config.evaluate import Benchmark
from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import DataError, load_problems
from dapo_lit.data.templates import PromptTemplate, check_agreement
from dapo_lit.engines.protocol import Sampling
from dapo_lit.rewards.pool import Verifier
from dapo_lit.rollout.collect import Prompt
from dapo_lit.tasks import chain_sum

DATA_FOLDER = "DAPO_LIT_DATA"


@dataclass(frozen=True)
class OpenBenchmark:
    """A benchmark with the prompts of one policy."""

    settings: Benchmark
    prompts: list[Prompt]
    sampling: Sampling
    decode: Callable[[Sequence[int]], str]
    verifier: Verifier
    messages: list[str]
    """What was changed to fit the policy."""

    @property
    def max_tokens(self) -> int:
        """Of the longest prompt and its response."""
        return max(len(p.ids) for p in self.prompts) + self.sampling.max_response_tokens


def open_benchmark(
    benchmark: Benchmark,
    tokenizer: PreTrainedTokenizerBase,
    policy: PretrainedConfig,
    *,
    seed: int,
    limit: int | None = None,
    deadline_s: float = 2.0,
    workers: int = 2,
) -> OpenBenchmark:
    """Reads the problems, encodes their prompts and shortens the response limit to the policy's context.

    Raises:
        DataError: the problems cannot be read, or the rule cannot use a reference answer.
        ConfigError: template and extraction or tokenizer do not agree, or a prompt fills the context.
    """
    chosen = benchmark_problems(benchmark)[:limit]
    verifier = Verifier(rule=benchmark.rule, extraction=benchmark.extraction, deadline_s=deadline_s, workers=workers)
    faults = [f"{p.id}: {fault}" for p in chosen if (fault := verifier.check_answer(p.answer))]
    if faults:
        raise DataError(f"benchmark.rule={benchmark.rule} cannot use {len(faults)} answers; first {faults[0]}")
    try:
        template = PromptTemplate.load(benchmark.template)
        check_agreement(template, benchmark.extraction)
        prompts = [Prompt(p, tuple(template.encode(p.problem, tokenizer))) for p in chosen]
    except ValueError as error:
        # The messages name the keys of a training run.
        text = str(error).replace("task.template", "benchmark.template").replace("reward.extr", "benchmark.extr")
        raise ConfigError(text) from None
    max_tokens, messages = response_limit(benchmark, prompts, policy)
    return OpenBenchmark(
        settings=benchmark,
        prompts=prompts,
        sampling=Sampling(max_tokens, benchmark.temperature, benchmark.top_p, benchmark.top_k, seed),
        decode=lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True)),
        verifier=verifier,
        messages=messages,
    )


def benchmark_problems(benchmark: Benchmark) -> list[Problem]:
    """All problems of a benchmark.

    Raises:
        DataError: neither file nor hub id gives them; the message says where they were looked for.
    """
    if benchmark.source == "chain_sum":
        assert benchmark.num_problems is not None
        try:
            return chain_sum.held_out_problems(benchmark.num_problems, sums=chain_sum.Sums(**benchmark.options))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"benchmark.options: {error}") from None
    folder = os.environ.get(DATA_FOLDER)
    places = [Path(benchmark.path)] if benchmark.path else []
    places += [Path(folder) / benchmark.path] if folder and benchmark.path else []
    there = next((str(place) for place in places if place.exists()), None)
    # A path that is not there may be a hub id itself; what looks like a file name is not.
    named = benchmark.path if benchmark.path and not Path(benchmark.path).suffix else None
    source = there or named or benchmark.hub_id or benchmark.path
    assert source is not None
    try:
        return load_problems(source, limit=benchmark.num_problems)
    except DataError as error:
        if there:
            raise
        looked = f"; looked for {', '.join(map(str, places))} first" if places else ""
        raise DataError(
            f"benchmark.path={benchmark.path}: {str(error).replace('task.path', 'benchmark.path')}{looked}. "
            f"Set benchmark.path to a file or a hub id, or {DATA_FOLDER} in the environment to the folder that holds it"
        ) from None


def response_limit(benchmark: Benchmark, prompts: Sequence[Prompt], policy: PretrainedConfig) -> tuple[int, list[str]]:
    """The benchmark's limit, or what the longest prompt leaves of the policy's context, and a message if that is less.

    Raises:
        ConfigError: it leaves nothing.
    """
    wanted = benchmark.max_response_tokens
    context = getattr(policy, "max_position_embeddings", None)
    longest = max(len(p.ids) for p in prompts)
    if context is None or longest + wanted <= context:
        return wanted, []
    left = context - longest
    if left < 1:
        raise ConfigError(
            f"benchmark {benchmark.name}: its longest prompt has {longest:,} tokens, "
            f"and the policy's context is {context:,}"
        )
    message = (
        f"{benchmark.name}: responses are limited to {left:,} tokens instead of {wanted:,}: the policy's context is "
        f"{context:,} tokens and the longest prompt has {longest:,}"
    )
    return left, [message]
