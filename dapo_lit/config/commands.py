"""The configs of the commands besides train: `evaluate` (with benchmarks) and `export`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from ablations.border import FolderName
from ablations.texts import read_text, yaml_tree
from dapo_lit.config.parsing import parse_as
from dapo_lit.config.sections import ConfigError, Count, Free, Policy, PositiveInt, Rollout, Section
from dapo_lit.config.shipped import config_folder

Answer = Literal["table", "json"]


class Benchmark(Section):
    """Problems and their evaluation protocol; results are comparable only under the same protocol."""

    name: FolderName
    """Part of metric names (eval/<name>/...) and of the output folder."""
    source: Literal["file", "chain_sum"]
    """Problems from `path`, or generated ones."""
    path: str | None
    """A file or folder, below the folder DAPO_LIT_DATA or as given; or a hub id. Of the last two the split `test`."""
    hub_id: str | None
    """Source of the problems if `path` does not exist."""
    options: Free
    """Options of generated problems."""
    num_problems: PositiveInt | None
    """Use only the first ones; null: all."""
    template: str
    """A shipped prompt template or a path to one."""
    rule: Literal["dapo", "numeric", "sympy"]
    extraction: Literal["answer_line", "boxed", "hash", "tags", "number", "auto"]
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
    """The evaluated model, unless `ckpt` is set."""
    rollout: Rollout
    """The engine; sampling parameters are the benchmark's."""
    benchmark: Benchmark
    ckpt: str | None
    """A run (its newest checkpoint), one of its .ckpt files, an HF folder or a hub id."""
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
    workers: PositiveInt
    """Processes of the verifier."""
    deadline_s: PositiveFloat
    show: Count
    """Responses printed at the end."""
    answer: Answer
    """What is printed on standard output; `--json` is short for answer=json."""


OF_TRAINING = {
    "rollout.temperature": "a key of training; an evaluation uses benchmark.temperature",
    "rollout.noise_stream": "a key of training; the noise of an evaluation depends on its seed",
    "rollout.steps_ahead": "a key of training; an evaluation has one set of weights",
    "policy.base_from": "a key of training; to evaluate a policy of a run, set ckpt=runs/<study>/<arm>/seed_<n>",
    "policy.architecture": "a key of training; an evaluation has the weights of policy.path or ckpt",
    "policy.lora": "a key of training; to evaluate the adapters of a run, set ckpt=runs/<study>/<arm>/seed_<n>",
}
"""Keys that `evaluate` shares with runs, because they are in one section with others, and does not read."""


def unread(key: str, ckpt: str | None, is_run: bool) -> str | None:
    """Why an evaluation does not read a key; None: it does. is_run: `ckpt` is a run or a checkpoint of one."""
    top = ".".join(key.split(".")[:2])
    if ckpt and top.startswith("policy.") and (is_run or top != "policy.dtype"):
        return f"{key}: ckpt={ckpt} is evaluated, with its own policy"
    return f"{key}: {OF_TRAINING[top]}" if top in OF_TRAINING else None


def load_benchmark(name: str) -> Benchmark:
    """Reads a benchmark from conf/benchmark/ by name, or from a .yaml file by path."""
    folder = config_folder() / "benchmark"
    file = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(f.stem for f in folder.glob("*.yaml")))
        raise ConfigError(
            f"evaluation.benchmarks: there is no {name!r}; there are {known}, or give the path of a .yaml"
        )
    tree = yaml_tree(read_text(file, error=ConfigError), file, ConfigError)
    # Choices of other groups, for the command that composes them.
    tree.pop("defaults", None)
    return parse_as(tree, Benchmark)


class ExportConfig(Section):
    ckpt: str
    """A run's folder (its newest checkpoint), or one checkpoint of it."""
    output: str
    """The folder to write; it must not exist yet."""
    license: str | None
    """Identifier of the weights' licence for the model card, such as apache-2.0; null: none was stated."""
