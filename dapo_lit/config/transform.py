"""The config of the answer transformation."""

from typing import Literal, Self

from pydantic import PositiveFloat, PositiveInt, model_validator

from dapo_lit.config.sections import Policy, Rollout, Section


class TransformConfig(Section):
    seed: int
    data: str
    """Problems, as task.path takes them."""
    output: str
    """JSONL of problems with integer answers; rejects go to <output>.rejected.jsonl. The same settings go on with files
    that are there; others are refused."""
    limit: PositiveInt | None
    """The first so many problems; null: all."""
    policy: Policy
    rollout: Rollout
    rewriting_template: str
    """Asks for the four sections."""
    solving_template: str
    """Stands around the rewritten problem."""
    extraction: Literal["answer_line", "boxed", "hash", "number", "auto"]
    """Where a solution's answer stands; it must agree with solving_template."""
    attempts: PositiveInt
    """Rewritings sampled for a problem; the first that can be used is checked."""
    solutions: PositiveInt
    """k: how often a rewritten problem is solved."""
    max_rewriting_tokens: PositiveInt
    max_solution_tokens: PositiveInt
    solving_temperature: PositiveFloat
    chunk: PositiveInt
    """Problems under way at once; results are written chunk by chunk, and a kill costs one."""
    threads: PositiveInt

    @model_validator(mode="after")
    def _has_model(self) -> Self:
        if not self.policy.path:
            raise ValueError("policy.path is needed: a model that can rewrite problems")
        return self
