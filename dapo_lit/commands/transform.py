"""The paper's answer transformation, started by dapo_lit/transform.py."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dapo_lit.config import ConfigError
from dapo_lit.config.transform import TransformConfig
from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import load_problems
from dapo_lit.data.templates import PromptTemplate, check_agreement
from dapo_lit.engines.protocol import Sampling
from dapo_lit.policy.load import load_model, load_tokenizer
from dapo_lit.preparation.outcome_files import OtherSettingsError, OutcomeFiles
from dapo_lit.preparation.transformation import Transformer
from dapo_lit.recipe.engine import build_engine
from dapo_lit.rewards.pool import Verifier


def transform(config: TransformConfig, overrides: list[str]) -> None:
    """Transforms the problems without an outcome."""
    torch.set_num_threads(config.threads)
    problems = load_problems(config.data, limit=config.limit)
    try:
        files = OutcomeFiles(Path(config.output).expanduser(), outcome_settings(config))
    except OtherSettingsError as error:
        raise ConfigError(str(error)) from None
    missing = [problem for problem in problems if problem.id not in files.outcomes]
    if len(missing) < len(problems):
        print(f"{len(problems) - len(missing):,} of {len(problems):,} problems are done; transforming the rest")
    with files, Verifier(rule="numeric", extraction=config.extraction) as verifier:
        if missing:
            transformer = build_transformer(config, verifier)
            for done, outcome in enumerate(transformer.transform(missing, config.chunk), start=1):
                files.write(outcome)
                if done % config.chunk == 0 or done == len(missing):
                    progress = f"{len(problems) - len(missing) + done:,} of {len(problems):,} problems"
                    print(f"{progress}: {outcome_counts(problems, files)}", file=sys.stderr, flush=True)
            transformer.engine.close()
    print(outcome_counts(problems, files, "\n"))
    print(f"problems  {files.kept}\nrejects   {files.rejected}")


def outcome_settings(config: TransformConfig) -> dict[str, Any]:
    """The settings that determine an outcome: all except output, limit, chunk and threads."""
    settings = config.model_dump(mode="json", exclude={"output", "limit", "chunk", "threads"})
    return settings | {"data": str(config.data)}


def outcome_counts(problems: Sequence[Problem], files: OutcomeFiles, between: str = ", ") -> str:
    counts = Counter(files.outcomes[p.id] for p in problems if p.id in files.outcomes)
    return between.join(
        f"{kind:<24}{count:,}" if between == "\n" else f"{kind} {count:,}" for kind, count in counts.items()
    )


def build_transformer(config: TransformConfig, verifier: Verifier) -> Transformer:
    """Raises ConfigError for a template that does not fit the policy or the extraction."""
    assert config.policy.path is not None
    tokenizer = load_tokenizer(config.policy.path)
    try:
        rewriting, solving = map(PromptTemplate.load, (config.rewriting_template, config.solving_template))
        check_agreement(solving, config.extraction)
        for template in (rewriting, solving):
            template.encode("1 + 1", tokenizer)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    model = load_model(config.policy.path, dtype=getattr(torch, config.policy.dtype))
    engine = build_engine(model, tokenizer, config.rollout)
    engine.sync_weights(model.state_dict().items(), version=0)
    return Transformer(
        engine=engine,
        encode_rewriting=lambda text: rewriting.encode(text, tokenizer),
        encode_solving=lambda text: solving.encode(text, tokenizer),
        decode=lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True),
        verifier=verifier,
        rewriting=Sampling(config.max_rewriting_tokens, temperature=config.rollout.temperature, seed=config.seed),
        solving=Sampling(config.max_solution_tokens, temperature=config.solving_temperature, seed=config.seed),
        attempts=config.attempts,
        solutions=config.solutions,
    )
