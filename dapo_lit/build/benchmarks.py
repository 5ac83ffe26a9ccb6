"""Opens a benchmark for one policy: encoded prompts, verifier, response limit within the policy's context."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from dapo_lit.config import ConfigError
from dapo_lit.config.evaluate import Benchmark
from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import DataError, load_problems
from dapo_lit.data.templates import agreed_template
from dapo_lit.engines.protocol import Sampling
from dapo_lit.engines.samples import token_ids
from dapo_lit.errors import HubError
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rollout.records import Prompt
from dapo_lit.tasks import chain_sum

DATA_FOLDER = "DAPO_LIT_DATA"


@dataclass(frozen=True)
class OpenBenchmark:
    """A benchmark prepared for one policy."""

    settings: Benchmark
    prompts: list[Prompt]
    sampling: Sampling
    decode: Callable[[Sequence[int]], str]
    verifier: Verifier
    messages: list[str]
    """Changes that were made to fit the policy."""

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest prompt plus the response limit."""
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
    """Reads the problems, encodes their prompts and lowers the response limit to fit the policy's context."""
    chosen = benchmark_problems(benchmark)[:limit]
    verifier = Verifier(rule=benchmark.rule, extraction=benchmark.extraction, deadline_s=deadline_s, workers=workers)
    faults = [f"{p.id}: {fault}" for p in chosen if (fault := verifier.check_answer(p.answer))]
    if faults:
        raise DataError(f"benchmark.rule={benchmark.rule} cannot use {len(faults)} answers; the first: {faults[0]}")
    template = agreed_template(benchmark.template, benchmark.extraction, "benchmark.template", "benchmark.extraction")
    prompts = [Prompt(p, token_ids(template.encode(p.problem, tokenizer, p.before))) for p in chosen]
    max_tokens, messages = response_limit(benchmark, prompts, policy)
    return OpenBenchmark(
        settings=benchmark,
        prompts=prompts,
        sampling=Sampling(max_tokens, benchmark.temperature, benchmark.top_p, seed=seed),
        decode=lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True)),
        verifier=verifier,
        messages=messages,
    )


def benchmark_problems(benchmark: Benchmark) -> list[Problem]:
    """All problems of a benchmark."""
    if benchmark.source == "chain_sum":
        assert benchmark.num_problems is not None
        try:
            return chain_sum.held_out_problems(benchmark.num_problems, sums=chain_sum.Sums(**benchmark.options))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"benchmark.options: {error}") from None
    folder = os.environ.get(DATA_FOLDER)
    places = [Path(benchmark.path)] if benchmark.path else []
    places += [Path(folder) / benchmark.path] if folder and benchmark.path else []
    local = next((str(place) for place in places if place.exists()), None)
    # A path that does not exist and has no suffix may be a hub id.
    hub_path = benchmark.path if benchmark.path and not Path(benchmark.path).suffix else None
    source = local or hub_path or benchmark.hub_id or benchmark.path
    assert source is not None
    try:
        return load_problems(source, limit=benchmark.num_problems, key="benchmark.path")
    except (DataError, HubError) as error:
        if local:
            raise
        searched = f"; no local file {' or '.join(map(str, places))}" if places else ""
        raise DataError(
            f"benchmark.path={benchmark.path}: {error}{searched}. Set "
            f"benchmark.path to a file or a hub id, or the environment variable {DATA_FOLDER} to the file's folder"
        ) from None


def response_limit(benchmark: Benchmark, prompts: Sequence[Prompt], policy: PretrainedConfig) -> tuple[int, list[str]]:
    """The benchmark's response limit, lowered to fit the policy's context, and a message if it was lowered."""
    wanted = benchmark.max_response_tokens
    context = getattr(policy, "max_position_embeddings", None)
    longest = max(len(p.ids) for p in prompts)
    if context is None or longest + wanted <= context:
        return wanted, []
    left = context - longest
    if left < 1:
        raise ConfigError(
            f"benchmark {benchmark.name}: its longest prompt has {longest:,} tokens, "
            f"but the policy's context is {context:,}"
        )
    message = (
        f"{benchmark.name}: responses are limited to {left:,} tokens instead of {wanted:,}, because the policy's "
        f"context is {context:,} tokens and the longest prompt has {longest:,}"
    )
    return left, [message]
