"""The groups of a run's config, each with the checks among its own fields, and the kinds of keys.

A field's kind is tagged once, where it is declared: `threads: Annotated[PositiveInt, EXECUTION]`. A tag on a section
holds for every key below it that has no tag of its own; a key without any tag is science. The config hash, the check
before a resume and the guard of a study read the tags through identity.py.
"""

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PositiveFloat,
    Strict,
    model_validator,
)

from ablations.border import MOST_STEPS, FolderName, short
from ablations.errors import UserError


class Kind(StrEnum):
    SCIENCE = "science"
    """Decides what is learned or how it is measured."""
    EXECUTION = "execution"
    """Decides where and how fast the run computes; results are equal up to rounding."""
    HORIZON = "horizon"
    """Decides where the run ends: part of the hash, and may grow when the run is resumed."""
    BOOKKEEPING = "bookkeeping"
    """Names, places, logs and checkpoints."""


SCIENCE, EXECUTION, HORIZON, BOOKKEEPING = Kind


Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=MOST_STEPS)]
PositiveInt = Annotated[int, Field(gt=0, le=MOST_STEPS)]


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    waiting: list[Any] = [values]
    while waiting:
        value = waiting.pop()
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is not a value of a config; give a finite number")
    return values


Free = Annotated[dict[str, Any], AfterValidator(_finite)]
"""Keys that whoever reads them declares."""
Entries = TypeVar("Entries", bound=tuple[Any, ...])
Listed = Annotated[Entries, Strict(False)]
"""A tuple that YAML and Python may write as a list; its entries are as strict as other values."""


def as_written(value: object) -> str:
    """A value as a config has it, shortened."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return repr(value) if isinstance(value, float) else short(value)


class ConfigError(UserError, ValueError):
    """A config that cannot run; the message names the key and says what to do."""


def _with_meanings(schema: dict[str, Any], section: type["Section"]) -> None:
    for name, words in meanings(section).items():
        schema["properties"][name]["description"] = words


class Section(BaseModel):
    """A group of keys: unknown ones are refused, values are frozen.

    A value is of its key's type already: no text or switch is read as a number, and no number as a switch. Only whole
    numbers stand for others, 1 for 1.0. A choice of literals is one of texts: Python takes False for 0.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        # Both cost a tenth of a command's start: validators of sections that are not used by themselves, and meanings,
        # for which pydantic reads the source of every section.
        defer_build=True,
        json_schema_extra=_with_meanings,
    )

    def faults(self) -> Iterable[str]:
        """Sentences about fields that do not fit each other; the first is the error."""
        return ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if fault := next(iter(self.faults()), None):
            raise ValueError(fault)
        return self


@cache
def meanings(section: type[Section]) -> dict[str, str]:
    """What each key of a section means: the text below it in the source."""
    found: dict[str, str] = {}
    for part in (part for part in reversed(section.__mro__) if issubclass(part, Section) and part is not Section):
        [body] = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(body, ast.ClassDef)
        for key, text in pairwise(body.body):
            match key, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[name] = inspect.cleandoc(words)
    return found


def section_of(annotation: Any) -> type[Section] | None:
    """The section that a field holds (it may be null as well); None for a plain value."""
    for candidate in (annotation, *get_args(annotation)):
        # Arguments of Literal are not types.
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


class Lora(Section):
    rank: PositiveInt
    """An adapter is two matrices, inputs x rank and rank x outputs."""
    alpha: PositiveFloat
    """The product of the two is scaled by alpha / rank."""


class Policy(Section):
    name: FolderName
    """Folder name of a policy that is made here."""
    path: str | None
    """A hub id or a Hugging Face folder; null: the task's base policy, a random one if `task.base` is null."""
    base_from: Annotated[str | None, BOOKKEEPING]
    """A folder of base policies, such as those of a packed study, and no others are taken; null: the package's where it
    ships this one, else one that is pre-trained on this machine once. `base_weights` in run.json says which it was."""
    architecture: Free | None
    """transformers' model configuration (model_type and sizes) if the weights are made here."""
    dtype: Literal["float32", "bfloat16", "float16"]
    """Weights and activations, in training and sampling; 16 bits only with `policy.lora`."""
    lora: Lora | None
    """Train only low-rank adapters, on every matrix of the layers; null: train the weights."""

    def faults(self) -> Iterator[str]:
        if not self.path and not self.architecture:
            yield ("policy.architecture is needed if policy.path is null; or give policy.path a hub id or a folder")
        for key, value in (self.architecture or {}).items():
            is_size = key.startswith("num_") or key.endswith("_size") or key in ("max_position_embeddings", "head_dim")
            if is_size and value is not None and (type(value) is not int or value < 1):
                yield f"architecture.{key}={as_written(value)}: a size is an integer of at least 1"
            # transformers checks the other names of a configuration when it makes one, which `plan` need not do
            if key == "model_type" and not isinstance(value, str):
                yield f"architecture.{key}={as_written(value)}: it must be a name of transformers, such as qwen2"
            if key == "tie_word_embeddings" and not isinstance(value, bool):
                yield f"architecture.{key}={as_written(value)}: it must be true or false"
            if key == "rope_theta" and (isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0):
                yield f"architecture.{key}={as_written(value)}: it must be a number above 0"
        if self.path and self.base_from:
            yield f"policy.base_from={self.base_from} is for base policies, and policy.path={self.path} is not one"


class Task(Section):
    name: Literal[
        "chain_sum",
        "parity",
        "string_programs",
        "sums_with_calculator",
        "second_try",
        "four_sums",
        "arithmetic",
        "file",
    ]
    """A generated task, or a file or hub data set at `path`."""
    label: FolderName
    """Name of the held-out problems in eval/<label>/..."""
    path: str | None
    """JSONL, Parquet, CSV, Arrow or a hub id, for `file`."""
    eval_path: str | None
    """Held-out problems for `file`; of a hub id its split `test` or `validation`; null: no held-out problems."""
    columns: dict[Literal["problem", "answer", "id"], str] | None
    """Your names of the columns of `path` and `eval_path`, where they differ; null: problem, answer, id."""
    deduplicate: bool
    """Keep each training statement once, and drop those with conflicting answers."""
    template: str
    """A shipped prompt template or a path to one."""
    num_problems: PositiveInt | None
    """Number of training problems after these selections; null: all."""
    num_heldout: PositiveInt
    """At most so many held-out problems, from the first on: a file or a small task may have fewer."""
    max_prompt_tokens: PositiveInt
    """Longer prompts are dropped and counted."""
    max_response_tokens: PositiveInt
    """Limit of a response, including the EOS token."""
    options: Annotated[
        Free, BeforeValidator(lambda given: {} if given is None else given, json_schema_input_type=Free | None)
    ]
    """Options of a generated task (ranges, shapes); null: none."""
    base: Free | None
    """Demonstrations that the task's base policy is pre-trained on: `stages`, and optionally `long_chains`, the share
    of the last stage that writes all steps while the others answer at once."""
    base_seed: int
    """Seed of the base policy: 0 for one base shared by all seeds, ${seed} in studies."""


class Turns(Section):
    """Episodes of several turns with an environment (docs/turns.md)."""

    environment: str | None
    """`calculator`, `lookup`, `second_try`, or your own, `package.module.name`; null: one turn, without an
    environment."""
    max_turns: PositiveInt
    """Most turns of the policy in an episode; task.max_response_tokens limits its tokens in all turns together."""
    max_turn_tokens: PositiveInt | None
    """Most tokens of a turn; null: no limit of its own."""
    max_observation_tokens: PositiveInt
    """Most tokens of the environment in an episode."""
    template: str
    """What is appended for an observation, which takes the place of {observation}: what separates it from the policy's
    words, such as the chat format's tokens between two messages."""
    deadline_s: PositiveFloat
    """Seconds for an answer of your own environment; an episode whose answer takes longer has no verdict."""
    workers: Annotated[PositiveInt | None, EXECUTION]
    """Processes in which your own environment answers, so questions at the same time; null: as many as score answers,
    which is few for one that waits for a network."""

    def faults(self) -> Iterator[str]:
        name = self.environment
        if name is not None and name not in ENVIRONMENTS and "." not in name:
            yield (
                f"environment={name}: no such environment; there are {', '.join(ENVIRONMENTS)}, or give the path of "
                "your own: package.module.name"
            )
        if self.template.count("{observation}") != 1:
            yield f"template={self.template!r}: {{observation}} must occur in it once, where the observation goes"

    @property
    def most_observed(self) -> int:
        """Most tokens of an environment in an episode; 0 without one."""
        return 0 if self.environment is None else self.max_observation_tokens


ENVIRONMENTS = ("calculator", "lookup", "second_try")


class Reward(Section):
    rule: Literal["dapo", "numeric", "sympy"]
    """Comparison of answers: after DAPO's normalisation, as exact numbers, or as mathematical expressions."""
    extraction: Literal["answer_line", "boxed", "hash", "tags", "number", "auto"]
    """Place of the answer: `Answer: ...`, a box, after the last `#`, the last number, or any of them."""
    wrong_value: Annotated[int, Field(ge=-1, le=0)]
    """The reward of a wrong answer: -1 (Eq. 7) or 0."""
    deadline_s: PositiveFloat
    """Seconds per answer, without the time for which its worker waits for a processor; one that takes longer has no
    verdict."""
    function: str | None
    """Your own reward function, `package.module.function`, instead of rule and extraction; docs/rewards.md."""
    weights: dict[str, float] | None
    """Weights of `correctness`, `format`, `length` and functions in the reward; null: correctness only."""
    max_error_frac: Annotated[float, Field(ge=0, le=1)]
    """A larger share of completions without a verdict (late or failed) in a step ends the run, with the first error."""


class VllmServer(Section):
    urls: Listed[tuple[str, ...]]
    """`http://host:port` of each server; each rank samples from its own."""
    folder: str | None
    """A folder that trainer and servers share under this path, for passing weights."""
    transfer: Literal["folder", "nccl"]
    """Pass weights through files in the folder, or from GPU to GPUs by vLLM's transfer engine (not run on GPUs yet);
    through the folder as well where no group of them can be made."""
    wait_s: Annotated[float, Field(ge=0)]
    """Seconds to wait for an unreachable server, at the start and after a failure."""


class Vllm(Section):
    placement: Annotated[Literal["auto", "colocated", "process", "server"], EXECUTION]
    """In the trainer's process (`colocated`), in one of its own on the same GPU (`process`), or in vLLM servers on
    other GPUs or machines; auto: `process` where one process trains on a GPU, else `colocated`."""
    server: Annotated[VllmServer, EXECUTION]
    """Settings for placement=server."""
    kv_cache_gb: Annotated[PositiveFloat | Literal["auto"], EXECUTION]
    """GiB of the key-value cache; auto: what training leaves of a GPU, as far as max_batch_size sequences use it."""
    tensor_parallel: Annotated[PositiveInt, EXECUTION]
    """GPUs that share the engine's weights: neighbouring ranks."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    """Weights and activations of the engine; auto: those of the trainer's computation, but bfloat16 on a GPU where that
    is float32, with which vLLM has not worked there."""
    fp32_head: bool
    """Compute logits in float32 whatever the dtype of the weights."""
    deterministic: bool
    """On a GPU: kernels whose result for a sequence does not depend on the batch, so that a step can be repeated."""
    enforce_eager: Annotated[bool, EXECUTION]
    """On a GPU: neither compiled code nor CUDA graphs; it starts sooner and decodes more slowly."""
    sleep: Annotated[bool, EXECUTION]
    """On a GPU: free the memory of weights and cache while the policy trains."""

    @property
    def cache_gb(self) -> float:
        """`kv_cache_gb` as a number."""
        # An evaluation, or an engine of one's own, knows of no trainer beside it.
        if self.kv_cache_gb == "auto":
            raise ValueError("rollout.vllm.kv_cache_gb=auto is chosen by the command `train`; give a number here")
        return self.kv_cache_gb


class Rollout(Section):
    engine: Literal["torch", "vllm"]
    """The package's own sampler, or vLLM."""
    temperature: PositiveFloat
    """Temperature of sampling in training, and of the policy in the loss."""
    max_batch_size: Annotated[PositiveInt, EXECUTION]
    """Sequences decoded at once, by each engine or server."""
    noise_stream: Count
    """The stream of sampling noise; two arms that differ only in it are a placebo."""
    steps_ahead: Count
    """Steps sampled while the policy trains; so many steps old is every batch. 0: sampling and training take turns."""
    vllm: Vllm
    """Settings for engine=vllm."""

    def faults(self) -> Iterator[str]:
        server = self.vllm.server
        if self.engine == "vllm" and self.vllm.placement == "server" and not (server.urls and server.folder):
            yield (
                "vllm.placement=server needs vllm.server.urls, [http://host:port] of servers of vLLM, and "
                "vllm.server.folder, which trainer and servers see under one path"
            )


class Budget(Section):
    """A run ends as soon as one of these is reached."""

    steps: PositiveInt
    """Rollout steps."""
    tokens_generated: PositiveInt | None
    """Response tokens sampled for training, dropped ones included."""


def _name_only(given: dict[str, Any] | None) -> dict[str, Any] | None:
    # Nothing that trains reads them again, and they may hold a key; every record is a config as JSON.
    return given and {name: value for name, value in given.items() if name == "_target_"}


SECRET = re.compile(r"(.*[_-])?(key|apikey|token|secret|password|passwd|credentials?)", re.IGNORECASE)
"""Names of arguments that hold a secret, in a logger or a callback."""


def without_secrets(given: Any) -> Any:
    """Arguments as a record has them: without those that are secrets by their name."""
    if not isinstance(given, dict):
        return given
    return {name: without_secrets(value) for name, value in given.items() if not SECRET.fullmatch(str(name))}


class Logger(Section):
    """Arguments of loggers are in no record of a run: config.yaml, checkpoints, packed cells."""

    rollouts_every: Count
    """Steps between rollout files; 0: none."""
    progress: Literal["plain", "none"]
    """plain: one line per step."""
    own_metrics: Listed[tuple[str, ...]]
    """Metrics of your own: the paths of their records, or of techniques that have some (docs/metrics.md)."""
    lightning: Annotated[Free | None, PlainSerializer(_name_only, when_used="json")]
    """A logger of Lightning's, `_target_` and its arguments, which gets every row too; null: none."""
    wandb: Annotated[Free | None, PlainSerializer(_name_only, when_used="json")]
    """Arguments of wandb.init (project, entity, mode, name, tags, notes), for Weights & Biases; null: not used."""


class Replay(Section):
    record: Listed[tuple[PositiveInt, ...]]
    """Steps kept for `python -m dapo_lit.replay` and `+study=fork`: rollouts, and the training state before them."""


class Evaluation(Section):
    every: Count
    """Rollout steps between evaluations; 0: only before and after training."""
    at_tokens: Listed[tuple[PositiveInt, ...]]
    """Generated tokens: the step that passes one is followed by an evaluation with `final_samples`."""
    benchmarks: Listed[tuple[str, ...]]
    """In addition to the held-out problems: names in conf/benchmark/ or paths of .yaml files, each with its own
    problems, samples, sampling and limits."""
    samples: PositiveInt
    """k of avg@k, pass@k and cons@k: responses to a held-out problem."""
    final_samples: PositiveInt | None
    """Responses in the evaluation that ends the run, which avg@k and pass@k are then estimated from; null: samples."""
    max_response_tokens: PositiveInt | None
    """Limit of a response to a held-out problem; null: task.max_response_tokens."""
    temperature: Annotated[float, Field(ge=0)]
    """0: the most probable token."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """Sample from the smallest set of tokens with this probability; 1: all."""

    def faults(self) -> Iterator[str]:
        if self.final_samples is not None and self.final_samples < self.samples:
            yield (
                f"final_samples ({self.final_samples}) is below samples ({self.samples}); the last evaluation decides "
                "comparisons, so give it at least as many, or null"
            )
