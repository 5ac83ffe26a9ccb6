"""The configs of the commands besides train: `evaluate` (with benchmarks), `export` and `plan`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, field_validator
from pydantic.dataclasses import dataclass

from dapo_lit.config.parsing import parse_as
from dapo_lit.config.run import Config
from dapo_lit.config.sections import ConfigError, Count, Fraction, Policy, Reflection, Rollout, Section
from dapo_lit.config.shipped import config_folder
from dapo_lit.errors import suggestion


class Benchmark(Section):
    """Problems and their evaluation protocol; results are comparable only under the same protocol."""

    name: str
    """Part of metric names (eval/<name>/...) and of the output folder."""
    source: Literal["file", "chain_sum"]
    """Problems from `path`, or generated ones."""
    path: str | None
    """A file or folder, as given or below the folder DAPO_LIT_DATA; or a hub id."""
    hub_id: str | None
    """Where the problems come from if `path` does not exist."""
    options: dict[str, Any]
    """Options of generated problems."""
    num_problems: PositiveInt | None
    """Use only the first ones; null: all."""
    template: str
    """A shipped prompt template or a path to one."""
    rule: Literal["dapo", "numeric", "sympy"]
    extraction: Literal["answer_line", "boxed", "hash", "number", "auto"]
    samples: PositiveInt
    """n: responses per problem; during training also k of avg@k, pass@k and cons@k."""
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    max_response_tokens: PositiveInt
    """Lowered, with a message, if the policy's context is shorter."""

    def faults(self) -> Iterator[str]:
        if self.source == "file" and not (self.path or self.hub_id):
            yield "benchmark.path or benchmark.hub_id is needed for benchmark.source=file"
        if self.source == "chain_sum" and self.num_problems is None:
            yield "benchmark.num_problems is needed for generated problems"


class EvaluateConfig(Section):
    policy: Policy
    """The evaluated model, unless `ckpt` or `compare` is set."""
    rollout: Rollout
    """The engine; sampling parameters are the benchmark's."""
    benchmark: Benchmark
    reflection: Reflection
    ckpt: str | None
    """A run (its newest checkpoint), one of its .ckpt files, an HF folder, a .gguf file or a hub id."""
    compare: tuple[str, ...]
    """Two of these, to compare question by question; empty: one evaluation."""
    reflection_of: str | None
    """A run whose recorded rollouts are searched for reflection: for its own patterns, and for others given here."""
    other_rules: tuple[Literal["dapo", "numeric", "sympy"], ...]
    """Further rules that score the same responses, to compare with benchmark.rule or with the rule of `rules_of`."""
    rules_of: str | None
    """A run whose recorded rollouts are scored by its rule and by `other_rules`, without sampling."""
    seed: int
    preflight: bool
    """Try out reward, model and tokenizer before the first sample, and print what was found."""
    limit: PositiveInt | None
    """Use only the first problems; null: all."""
    n: PositiveInt | None
    """Responses per problem; null: benchmark.samples."""
    output: str
    device: Literal["auto", "cpu", "cuda"]
    threads: PositiveInt
    cache_gb: PositiveFloat
    """Memory limit of keys and values; long sequences are decoded in smaller batches."""
    save_every_s: Annotated[float, Field(ge=0)]
    """Seconds between writes of finished samples."""
    workers: PositiveInt
    """Processes of the verifier."""
    deadline_s: PositiveFloat
    show: Count
    """Responses printed at the end."""

    def faults(self) -> Iterator[str]:
        if self.rules_of and not self.other_rules:
            yield "rules_of needs rules to compare with the run's, e.g. 'other_rules=[dapo,sympy]'"
        if self.compare and (len(self.compare) != 2 or self.ckpt):
            yield (
                "compare takes two models and excludes ckpt, "
                "e.g. 'compare=[runs/single/dapo/seed_0,models/smollm2_135m]'"
            )


def load_benchmark(name: str) -> Benchmark:
    """Reads a benchmark from conf/benchmark/ by name, or from a .yaml file by path."""
    folder = config_folder() / "benchmark"
    file = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(f.stem for f in folder.glob("*.yaml")))
        raise ConfigError(
            f"evaluation.benchmarks: there is no {name!r}; there are {known}, or give the path of a .yaml"
        )
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    tree.pop("defaults", None)  # choices of other groups, for the command that composes them
    return parse_as(tree, Benchmark)


class ExportConfig(Section):
    ckpt: str
    """A run's folder (its newest checkpoint), or one checkpoint of it."""
    output: str
    """The folder to write; it must not exist yet."""
    push: str | None
    """owner/name of a repository on the Hugging Face hub that gets the folder; created as private if there is none."""
    license: str | None
    """Identifier of the weights' licence for the model card, such as apache-2.0; null: none was stated."""

    @field_validator("push")
    @classmethod
    def _names_owner_and_repository(cls, push: str | None) -> str | None:
        if push is not None and len([part for part in push.split("/") if part]) != 2:
            raise ValueError(f"{push} is not owner/name, such as me/dapo")
        return push


@dataclass(frozen=True)
class Hardware:
    """One GPU, from the maker's data sheet."""

    name: str
    memory_gb: PositiveFloat
    tflops: PositiveFloat
    """Dense bf16 operations, 10^12 per second."""
    bandwidth_gb_s: PositiveFloat
    """Bandwidth of its memory."""
    network_gb_s: PositiveFloat
    """Bandwidth to GPUs of other machines: one 400 or 200 Gbit/s port a GPU."""
    nvlink_gb_s: PositiveFloat
    """Bandwidth to GPUs of the same machine."""
    train_frac: PositiveFloat = 0.35
    """Share of `tflops` that training reaches: torchtitan with FSDP2, Llama 3.1 8B on 128 H100, not compiled."""


GPUS = {
    "a100": Hardware("A100 SXM 80 GB", 80.0, 312.0, 2039.0, 25.0, 300.0, 0.57),  # torchtitan, Llama 3 8B on 64
    "a800": Hardware("A800 SXM 80 GB", 80.0, 312.0, 2039.0, 25.0, 200.0, 0.57),
    "h20": Hardware("H20", 96.0, 148.0, 4000.0, 50.0, 450.0, 0.57),  # assumed: its arithmetic is slower still
    "h100": Hardware("H100 SXM", 80.0, 989.0, 3350.0, 50.0, 400.0),
    "h200": Hardware("H200 SXM", 141.0, 989.0, 4800.0, 50.0, 400.0),
    "h800": Hardware("H800 SXM", 80.0, 989.0, 3350.0, 50.0, 200.0),
    "cpu": Hardware("two CPU cores", 16.0, 0.1, 20.0, 1.0, 10.0),  # rough, and of use for tiny policies only
}


def known_gpu(given: object) -> object:
    """The GPU of a name; what is no name is left to the schema."""
    if not isinstance(given, str):
        return given
    if given not in GPUS:
        raise ValueError(f"there is no such hardware; {suggestion(given, GPUS, 'hardware={}')}")
    return GPUS[given]


class Workload(Section):
    prompt_tokens: Count
    mean_response_tokens: PositiveFloat
    length_spread: PositiveFloat
    """Standard deviation of the logarithm of the length."""
    keep_frac: Fraction
    """Share of groups that dynamic sampling keeps."""


class PlanConfig(Config):
    quick: bool
    """Simulate four and five layers and extrapolate to all."""
    runs: PositiveInt
    """Arms x seeds."""
    hardware: Annotated[Hardware, BeforeValidator(known_gpu)]
    """A name of the table above, or a mapping with the same values."""
    price_per_hour: PositiveFloat | None
    """Of one GPU, in any currency; null: print no cost."""
    workload: Workload
