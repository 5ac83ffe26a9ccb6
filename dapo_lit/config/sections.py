"""The groups that a run's config is made of, each with the checks among its own fields."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from dapo_lit.config.kinds import BOOKKEEPING, EXECUTION

Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class ConfigError(ValueError):
    """A config that cannot run; the message names the key and says what to do."""


class Section(BaseModel):
    """A group of keys: unknown ones are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())


class Lora(Section):
    rank: PositiveInt
    """Of each adapter: two matrices of inputs x rank and rank x outputs."""
    alpha: PositiveFloat
    """The product of an adapter counts alpha / rank."""
    target_modules: Annotated[tuple[Projection, ...], Field(min_length=1)]
    """Matrices of each layer that get an adapter."""


class Policy(Section):
    name: str
    """What the folder of a policy that is made here is called."""
    path: str | None
    """A hub id, a local Hugging Face folder or a .gguf file; null: the task's base policy or a random one."""
    random_init: bool
    """Build `architecture` with random weights."""
    architecture: dict[str, Any] | None
    """Model configuration of transformers (model_type and sizes) where the weights are made here."""
    dtype: Literal["float32", "bfloat16", "float16"]
    freeze_frac: Fraction
    """Share of the layers, from the input on, that are not trained."""
    lora: Lora | None
    """Train low-rank adapters beside the matrices, and nothing else; null: train the weights themselves."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.path and self.random_init:
            raise ValueError(
                "policy.path and policy.random_init exclude each other: "
                "set policy.path=null or policy.random_init=false"
            )
        if not self.path and not self.architecture:
            raise ValueError(
                "policy.architecture is needed where policy.path is null; "
                "or give policy.path a hub id, a folder or a .gguf file"
            )
        return self


class Difficulty(Section):
    key: str
    """The column that holds a problem's difficulty: a number, or a text such as `Level 3`."""
    low: float | None
    """The easiest that is trained on; null: no bound."""
    high: float | None
    """The hardest that is trained on; null: no bound."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low ({self.low:g}) is above high ({self.high:g}); no problem lies between them")
        return self


class Task(Section):
    name: Literal["chain_sum", "four_sums", "arithmetic", "file"]
    """Who makes the problems: a generated task, or a file or hub data set at `path`."""
    label: str
    """The name of the benchmark in eval/<label>/..."""
    path: str | None
    """JSONL, Parquet, CSV or a hub id; for `file`."""
    eval_path: str | None
    """The held-out problems of `file`, of a hub id its split `test` or `validation`; null: no evaluation of its own."""
    deduplicate: bool
    """Keep each training statement once, and none that is given with different answers."""
    exclude_overlap_with: tuple[str, ...]
    """Evaluation sets (as eval_path); training problems that quote more than half of one of theirs are left out."""
    difficulty: Difficulty | None
    """Bounds on the training problems' difficulty; null: none."""
    template: str
    """A shipped prompt template or a path to one."""
    num_problems: PositiveInt | None
    """How many training problems, of those that are not left out; null: all."""
    num_heldout: PositiveInt
    """How many held-out problems there are to evaluate on."""
    max_prompt_tokens: PositiveInt
    """Longer prompts are dropped and counted."""
    max_response_tokens: PositiveInt
    """The limit of a response, the EOS token included."""
    options: dict[str, Any]
    """What a generated task knows beside it (ranges, shapes)."""
    base: dict[str, Any] | None
    """The demonstrations that the task's base policy is pre-trained on."""
    base_seed: int
    """Seed of the base policy: 0 for one base for all, ${seed} in studies."""


class Reward(Section):
    rule: Literal["dapo", "numeric", "sympy"]
    extraction: Literal["answer_line", "boxed", "hash", "number", "auto"]
    wrong_value: Literal[-1, 0]
    """The reward of a wrong answer: -1 (Eq. 7) or 0."""
    deadline_s: PositiveFloat
    """Seconds that the check of one answer may take; then it counts as wrong."""
    workers: Annotated[PositiveInt, EXECUTION]
    """Worker processes of the verifier, started when the first answer needs one."""
    function: str | None
    """A reward function of your own, `package.module.function`, instead of rule and extraction; docs/rewards.md."""
    weights: dict[str, float] | None
    """The reward as a weighted sum of `correctness`, `format`, `length` and functions; null: correctness alone."""


class VllmServer(Section):
    urls: tuple[str, ...]
    """`http://host:port` of each server; a rank samples from its own."""
    folder: str | None
    """Where weights are handed over: trainer and servers see it under this path."""
    transfer: Literal["folder", "nccl"]
    """Through files, or from GPU to GPUs (not run here)."""
    shard_gb: PositiveFloat
    """GiB of a file of weights, which is what is in memory of them at once."""
    request_s: PositiveFloat
    """Seconds in which a server must answer anything but a request for a response; loading weights is among it."""
    wait_s: Annotated[float, Field(ge=0)]
    """Seconds to wait for a server that does not answer yet, at the start and after a failure."""


class Vllm(Section):
    placement: Annotated[Literal["colocated", "server"], EXECUTION]
    """In the trainer's process, or in vLLM's own servers on other GPUs or machines."""
    server: Annotated[VllmServer, EXECUTION]
    """Settings of placement=server."""
    kv_cache_gb: Annotated[PositiveFloat, EXECUTION]
    """GiB of the key-value cache."""
    tensor_parallel: Annotated[PositiveInt, EXECUTION]
    """GPUs that share the engine's weights; above 1 the run is launched by torchrun."""
    eager: Annotated[bool, EXECUTION]
    """No compilation and no CUDA graphs: starts in seconds, samples slower on a GPU."""
    fp32_head: bool
    """Logits from float32 products whatever the dtype of the weights."""
    sleep: Annotated[bool, EXECUTION]
    """On a GPU: give the memory of weights and cache back while the trainer works."""


class Rollout(Section):
    engine: Literal["torch", "vllm"]
    temperature: PositiveFloat
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Count
    max_batch_size: Annotated[PositiveInt, EXECUTION]
    """Sequences decoded at once."""
    noise_stream: Count
    """Which stream of sampling noise training draws from; two arms that differ in it alone are a placebo."""
    mismatch_alarm: Annotated[Literal["auto"] | PositiveFloat | None, BOOKKEEPING]
    """mismatch/kl (nats a token) above which a step is reported: a stale or broken sync shows there; null: never;
    auto: 1e-4 in float32, 0.01 in 16 bits."""
    stall_s: Annotated[PositiveFloat, BOOKKEEPING]
    """A message names the prompts that are waited for when no sample has ended for so many seconds."""
    overlap: bool
    """Sample the next step while the policy trains on this one: every batch but the first is a step old."""
    vllm: Vllm
    """Settings of engine=vllm; the others do not read them."""

    @model_validator(mode="after")
    def _servers(self) -> Self:
        server = self.vllm.server
        if self.engine == "vllm" and self.vllm.placement == "server" and not (server.urls and server.folder):
            raise ValueError(
                "vllm.placement=server needs vllm.server.urls, [http://host:port] of servers of vLLM, and "
                "vllm.server.folder, which trainer and servers see under one path"
            )
        return self

    @model_validator(mode="after")
    def _full_distribution(self) -> Self:
        if self.top_p < 1 or self.top_k > 0:
            raise ValueError(
                f"top_p={self.top_p}, top_k={self.top_k}: training samples from the whole distribution, or the "
                "importance ratio is biased; "
                "set rollout.top_p=1 rollout.top_k=0 (evaluation has its own)"
            )
        return self


class Budget(Section):
    """A run ends at the first of these that is reached."""

    steps: PositiveInt
    tokens_generated: PositiveInt | None
    wall_s: PositiveFloat | None


class Wandb(Section):
    enabled: bool
    project: str
    entity: str | None
    mode: Literal["online", "offline"]


class Logger(Section):
    rollouts_every: Count
    """Steps between files of rollouts; 0: none."""
    completions_every: Count
    """Steps between printed tables of sampled completions; 0: none."""
    progress: Literal["auto", "rich", "plain", "none"]
    """auto: a live display on a terminal, one plain line a step elsewhere."""
    wandb: Wandb


class Reflection(Section):
    patterns: dict[str, str]
    """Name to regular expression; a response that one occurs in reflects. A space stands for any white space."""


class Replay(Section):
    record: tuple[PositiveInt, ...]
    """Rollout steps kept for `python -m dapo_lit.replay`: their rollouts and the state of training before them."""


class Evaluation(Section):
    every: Count
    """Rollout steps between evaluations; 0: before and after training only."""
    benchmarks: tuple[str, ...]
    """Beside the task's held-out problems: files of conf/benchmark/ by name, or a .yaml by path, each with its own
    number of problems and samples, sampling and limits."""
    num_problems: PositiveInt
    samples: PositiveInt
    """k of avg@k, pass@k and cons@k."""
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Count
