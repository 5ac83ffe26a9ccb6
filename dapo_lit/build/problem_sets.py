"""The problems that a run trains on and holds out, a report of what was dropped, and its benchmarks: encoded prompts,
verifier, response limit within the policy's context.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from pathlib import Path

from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ablations.errors import DataError
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.commands import Benchmark
from dapo_lit.config.sections import Task
from dapo_lit.data.problem import Problem
from dapo_lit.data.selection import SelectionReport, deduplicate
from dapo_lit.data.templates import agreed_template
from dapo_lit.engines.protocol import Sampling, token_ids
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rollout.records import Prompt
from dapo_lit.tasks.generated import generated


@dataclass(frozen=True)
class Problems:
    train: list[Problem]
    heldout: list[Problem]
    metrics: Mapping[str, Callable[[str], bool]] = field(default_factory=dict)
    """The metrics that the task adds to a step's: the share of responses for which the predicate holds."""
    selection: SelectionReport = field(default_factory=SelectionReport)
    """The training problems that were dropped."""


def problems(config: Config) -> Problems:
    """The task's training and held-out problems; a file is read and checked completely."""
    task = config.task
    judged = config.reward.function is not None
    found = _file_problems(task, judged) if task.name == "file" else _generated_problems(task)
    train = found.train
    if task.deduplicate:
        train, counts = deduplicate(train)
        found.selection.add_duplicates(counts)
    train = train[: task.num_problems]
    found.selection.refuse_empty(train, f"task.deduplicate={str(task.deduplicate).lower()}")
    return replace(found, train=train)


def _generated_problems(task: Task) -> Problems:
    try:
        train, heldout, metrics = generated(task.name).problem_sets(task.num_problems, task.num_heldout, task.options)
        return Problems(train, heldout, metrics)
    except (TypeError, ValueError) as error:
        options = ", ".join(f"{key}={value}" for key, value in task.options.items())
        raise ConfigError(f"task.options ({options}): {error}" if options else str(error)) from None


def _file_problems(task: Task, answers_optional: bool) -> Problems:
    from dapo_lit.data.sources import load_heldout, load_with_selection

    columns = {str(field): name for field, name in (task.columns or {}).items()}
    train, selection = load_with_selection(str(task.path), "train", columns=columns, answers_optional=answers_optional)
    heldout: list[Problem] = []
    if task.eval_path:
        heldout = load_heldout(task.eval_path, columns, "task.eval_path", answers_optional=answers_optional)
    heldout = heldout[: task.num_heldout]
    return Problems(train, heldout, selection=selection)


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
    model: PreTrainedModel,
    *,
    seed: int,
    limit: int | None = None,
    deadline_s: float = 2.0,
    workers: int = 2,
    day: date | None = None,
) -> OpenBenchmark:
    """Reads the problems, encodes their prompts and lowers the response limit to fit the policy's context.

    limit: keeps only the first prompts. The response limit is that of all, so that samples under any `limit` belong
        together.
    day: the date in prompts whose chat template writes one; None: today.
    """
    from dapo_lit.policy.load import eos_ids, response_text  # loads torch

    problems = benchmark_problems(benchmark)
    verifier = Verifier(rule=benchmark.rule, extraction=benchmark.extraction, deadline_s=deadline_s, workers=workers)
    faults = [f"{p.id}: {fault}" for p in problems[:limit] if (fault := verifier.check_answer(p.answer))]
    if faults:
        raise DataError(f"benchmark.rule={benchmark.rule} cannot use {len(faults)} answers; the first: {faults[0]}")
    template = agreed_template(benchmark.template, benchmark.extraction, "benchmark.template", "benchmark.extraction")
    ids = template.encode_all([*map(template.asked, problems)], tokenizer, day)
    prompts = [Prompt(problem, token_ids(own)) for problem, own in zip(problems, ids, strict=True)]
    max_tokens, messages = response_limit(benchmark, prompts, model.config)

    @cache
    def ends() -> tuple[int, ...]:  # not before it is needed: checks say in words that there is none
        return eos_ids(model, tokenizer)

    return OpenBenchmark(
        settings=benchmark,
        prompts=prompts[:limit],
        sampling=Sampling(max_tokens, benchmark.temperature, benchmark.top_p, seed=seed),
        decode=lambda ids: response_text(ids, ends(), tokenizer),
        verifier=verifier,
        messages=messages,
    )


def benchmark_problems(benchmark: Benchmark) -> list[Problem]:
    if benchmark.source == "chain_sum":
        from dapo_lit.tasks import chain_sum

        assert benchmark.num_problems is not None
        try:
            return chain_sum.held_out_problems(benchmark.num_problems, sums=chain_sum.Sums(**benchmark.options))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"benchmark.options: {error}") from None
    from dapo_lit.data.sources import load_benchmark_problems

    folder = os.environ.get(DATA_FOLDER)
    # The folder that is named comes first: a file of the same name where the command is typed is not taken for it.
    places = [Path(folder) / benchmark.path] if folder and benchmark.path else []
    places += [Path(benchmark.path)] if benchmark.path else []
    local = next((str(place) for place in places if place.exists()), None)
    # A path that does not exist and has no suffix may be a hub id.
    hub_path = benchmark.path if benchmark.path and not Path(benchmark.path).suffix else None
    source = local or hub_path or benchmark.hub_id or benchmark.path
    assert source is not None
    from dapo_lit.data.hub import HubError  # only benchmarks are read from it

    try:
        return load_benchmark_problems(source, "benchmark.path")[: benchmark.num_problems]
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
