"""The config of the answer transformation."""

from typing import Literal, Self

from pydantic import PositiveFloat, PositiveInt, model_validator

from dapo_lit.config.sections import Policy, Rollout, Section


class TransformConfig(Section):
    seed: int
    data: str
    """Problems, as task.path takes them."""
    output: str
    """JSONL of problems with integer answers; rejects go to <output>.rejected.jsonl. An existing file is continued with
    the same settings and refused with others."""
    limit: PositiveInt | None
    """Use only the first problems; null: all."""
    policy: Policy
    rollout: Rollout
    rewriting_template: str
    """Asks for the four sections."""
    solving_template: str
    """Wraps the rewritten problem."""
    extraction: Literal["answer_line", "boxed", "hash", "number", "auto"]
    """How a solution's answer is found; must agree with solving_template."""
    attempts: PositiveInt
    """Rewritings sampled per problem; the first usable one is checked."""
    solutions: PositiveInt
    """k: solutions sampled per rewritten problem."""
    max_rewriting_tokens: PositiveInt
    max_solution_tokens: PositiveInt
    solving_temperature: PositiveFloat
    chunk: PositiveInt
    """Problems processed at once; results are written chunk by chunk."""
    threads: PositiveInt

    @model_validator(mode="after")
    def _has_model(self) -> Self:
        if not self.policy.path:
            raise ValueError("policy.path is needed: a model that can rewrite problems")
        return self
