"""The config of `python -m dapo_lit.evaluate`, and a benchmark with its protocol."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from dapo_lit.config.folder import config_folder
from dapo_lit.config.parsing import parse_as
from dapo_lit.config.sections import ConfigError, Count, Policy, Reflection, Rollout, Section


class Benchmark(Section):
    """Problems and the protocol they are asked under: two results compare only under one protocol."""

    name: str
    """In eval/<name>/... and in the output folder."""
    source: Literal["file", "chain_sum"]
    """Problems from `path`, or generated ones."""
    path: str | None
    """A file or folder, as it stands or in the folder that DAPO_LIT_DATA names; or a hub id."""
    hub_id: str | None
    """Where the problems come from if `path` is not there."""
    options: dict[str, Any]
    """Of generated problems."""
    num_problems: PositiveInt | None
    """The first so many; null: all."""
    template: str
    """A shipped prompt template or a path to one."""
    rule: Literal["dapo", "numeric", "sympy"]
    extraction: Literal["answer_line", "boxed", "hash", "number", "auto"]
    samples: PositiveInt
    """n: responses to a problem; k of avg@k, pass@k and cons@k where they are logged in training."""
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Count
    max_response_tokens: PositiveInt
    """Less where the policy's context is shorter; a message says so."""

    @model_validator(mode="after")
    def _has_problems(self) -> Self:
        if self.source == "file" and not (self.path or self.hub_id):
            raise ValueError("benchmark.path or benchmark.hub_id is needed for benchmark.source=file")
        if self.source == "chain_sum" and self.num_problems is None:
            raise ValueError("benchmark.num_problems is needed for generated problems")
        return self


class EvaluateConfig(Section):
    policy: Policy
    """What is evaluated, unless `ckpt` or `compare` names something."""
    rollout: Rollout
    """The engine; how to sample stands with the benchmark."""
    benchmark: Benchmark
    reflection: Reflection
    ckpt: str | None
    """A run (its newest checkpoint), one of its .ckpt files, an HF folder, a .gguf file or a hub id."""
    compare: tuple[str, ...]
    """Two of these, compared question by question; empty: one evaluation."""
    reflection_of: str | None
    """A run whose recorded rollouts are searched for reflection; nothing is sampled."""
    other_rules: tuple[Literal["dapo", "numeric", "sympy"], ...]
    """Rules that score the same responses beside benchmark.rule, or the run's of `rules_of`, with their differences."""
    rules_of: str | None
    """A run whose recorded rollouts are scored by its rule and by `other_rules`; nothing is sampled."""
    seed: int
    limit: PositiveInt | None
    """The first so many problems; null: all."""
    n: PositiveInt | None
    """Responses to a problem; null: benchmark.samples."""
    out_dir: str
    device: Literal["auto", "cpu", "cuda"]
    threads: PositiveInt
    cache_gb: PositiveFloat
    """Bound on the memory of keys and values; fewer sequences are decoded at once where they are long."""
    save_every_s: Annotated[float, Field(ge=0)]
    """Seconds of finished samples that a kill may cost."""
    workers: PositiveInt
    """Processes that compare answers."""
    deadline_s: PositiveFloat
    show: Count
    """Responses printed at the end."""

    @model_validator(mode="after")
    def _two(self) -> Self:
        if self.rules_of and not self.other_rules:
            raise ValueError("rules_of needs rules to compare with the run's, e.g. 'other_rules=[dapo,sympy]'")
        if self.compare and (len(self.compare) != 2 or self.ckpt):
            raise ValueError(
                "compare takes two models and excludes ckpt, "
                "e.g. 'compare=[runs/single/dapo/seed_0,models/smollm2_135m]'"
            )
        return self


def load_benchmark(name: str) -> Benchmark:
    """A benchmark of conf/benchmark/ by name, or one in a .yaml file by path.

    Raises:
        ConfigError: there is none, or it does not fit the schema.
    """
    folder = config_folder() / "benchmark"
    file = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(f.stem for f in folder.glob("*.yaml")))
        raise ConfigError(
            f"evaluation.benchmarks: there is no {name!r}; there are {known}, or give the path of a .yaml"
        )
    return parse_as(yaml.safe_load(file.read_text(encoding="utf-8")), Benchmark)
