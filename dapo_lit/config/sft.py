"""The config of the supervised warm-up."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from dapo_lit.config.sections import Fraction, Policy, Reflection, Section, Task


class AgreementFilter(Section):
    enabled: bool
    """Keep only rows with the majority answer of the rows that share their prompt."""
    extraction: Literal["answer_line", "boxed", "hash", "number", "auto"]
    rule: Literal["dapo", "numeric", "sympy"]
    """How answers are found and compared, as in the reward."""
    min_samples: Annotated[int, Field(ge=2)]
    """Smallest number of rows with the majority answer."""
    min_frac: Fraction
    """Smallest share of the prompt's rows with the majority answer; rows without an answer count as different."""


class Training(Section):
    epochs: PositiveFloat
    """Passes over the rows; the number of updates is rounded up."""
    batch_size: PositiveInt
    """Rows per update."""
    micro_batches: PositiveInt
    """Pieces that a batch is computed in; more pieces need less memory and give the same result."""
    learning_rate: PositiveFloat
    """Peak; warm-up and decay to zero are linear."""
    warmup_frac: Fraction
    weight_decay: Annotated[float, Field(ge=0)]
    max_grad_norm: PositiveFloat
    dtype: Literal["bfloat16", "float16"] | None
    """Dtype of forward and backward; the weights stay float32. null: float32."""
    max_tokens: PositiveInt
    """Rows with more tokens (prompt and response) are dropped and counted."""


class SftConfig(Section):
    seed: int
    data: str | None
    """Rows with `prompt` and `response`; null: make the task's base policy and print its folder."""
    output: str
    """The folder to write; it must not exist yet. Unused without data."""
    policy: Policy
    """The model to train."""
    task: Task
    """Its template wraps every prompt; its base policy is trained if policy.path is null."""
    reflection: Reflection
    """Comes with the task; not used here."""
    agreement: AgreementFilter
    training: Training
    preflight: bool
    """Try out policy and tokenizer before the first update and print what was found in a table."""
    threads: PositiveInt
    """Threads of torch."""

    @model_validator(mode="after")
    def _wide_weights(self) -> Self:
        if self.data is not None and self.policy.dtype != "float32":
            raise ValueError(
                f"policy.dtype={self.policy.dtype}: 16-bit weights round small updates away. Set policy.dtype=float32, "
                "and training.dtype=bfloat16 to compute with 16-bit copies of them"
            )
        return self
