"""The paper's answer transformation: `python -m dapo_lit.transform data=problems.jsonl policy.path=MODEL`.

Writes problems with integer answers to `output` and rejects, each with its reason, beside it; prints how many of each.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import torch

from dapo_lit.command import run_command
from dapo_lit.config import ConfigError
from dapo_lit.config.transform import TransformConfig
from dapo_lit.data.sources import load_problems
from dapo_lit.data.templates import PromptTemplate, check_agreement
from dapo_lit.lit.build import build_engine
from dapo_lit.policy.load import load_model, load_tokenizer
from dapo_lit.rewards.pool import Verifier
from dapo_lit.rollout.engine import Sampling
from dapo_lit.rollout.transformation import Reject, Transformed, Transformer


def transform(config: TransformConfig, overrides: list[str]) -> None:
    torch.set_num_threads(config.threads)
    output = Path(config.output).expanduser()
    rejected = output.with_suffix(".rejected.jsonl")
    for file in (output, rejected):
        if file.exists():
            raise ConfigError(f"{file} is there already; move it away or set output to another file")
    problems = load_problems(config.data, limit=config.limit)
    with Verifier(rule="numeric", extraction=config.extraction) as verifier:
        transformer = build_transformer(config, verifier)
        counts: Counter[str] = Counter()
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("w") as kept, rejected.open("w") as refused:
            for outcome in transformer.transform(problems, config.chunk):
                file_of = refused if isinstance(outcome, Reject) else kept
                file_of.write(json.dumps(outcome.row(), ensure_ascii=False) + "\n")
                file_of.flush()
                counts[kind_of(outcome)] += 1
                done = sum(counts.values())
                if done % config.chunk == 0 or done == len(problems):
                    told = ", ".join(f"{kind} {count:,}" for kind, count in counts.items())
                    print(f"{done:,} of {len(problems):,} problems: {told}", file=sys.stderr, flush=True)
        transformer.engine.close()
    print("\n".join(f"{kind:24}{count:,}" for kind, count in counts.items()))
    print(f"problems  {output}\nrejects   {rejected}")


def kind_of(outcome: Transformed | Reject) -> str:
    if isinstance(outcome, Reject):
        return f"rejected, {outcome.reason}"
    return "rewritten" if outcome.rewriting else "integer already"


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


if __name__ == "__main__":
    sys.exit(run_command(transform, TransformConfig, "transform"))
