"""The config of the supervised warm-up."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from dapo_lit.config.sections import Fraction, Policy, Section, Task


class AgreementFilter(Section):
    enabled: bool
    """Keep only rows with the majority answer of the rows that share their prompt."""
    extraction: Literal["answer_line", "boxed", "hash", "number", "auto"]
    rule: Literal["dapo", "numeric", "sympy"]
    """How answers are found, and when two are the same: as in the reward."""
    min_samples: Annotated[int, Field(ge=2)]
    """Rows that must give the majority answer."""
    min_frac: Fraction
    """Share of the prompt's rows that must give it; rows without an answer count as others."""


class Training(Section):
    epochs: PositiveFloat
    """Times through the rows; the number of updates is rounded up."""
    batch_size: PositiveInt
    """Rows in an update."""
    micro_batches: PositiveInt
    """Pieces that a batch is computed in: the more, the less memory; the result is the same."""
    learning_rate: PositiveFloat
    """The highest: warm-up and decay to zero are linear."""
    warmup_frac: Fraction
    weight_decay: Annotated[float, Field(ge=0)]
    max_grad_norm: PositiveFloat
    max_tokens: PositiveInt
    """Rows with more tokens, prompt and response together, are dropped and counted."""


class SftConfig(Section):
    seed: int
    data: str | None
    """Rows with `prompt` and `response`; null: make the task's own base policy and print its folder."""
    output: str
    """The folder to write; it must not be there yet. Not used without data."""
    policy: Policy
    """Where training starts from."""
    task: Task
    """Its template stands around every prompt; its base is the start where policy.path is null."""
    agreement: AgreementFilter
    training: Training
    threads: PositiveInt
    """Threads of torch."""
