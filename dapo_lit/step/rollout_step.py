"""What the trainer takes for one batch: a collected rollout step and its tensors."""

from dataclasses import dataclass
from typing import Any

from dapo_lit.rollout.records import CollectedStep
from dapo_lit.step.packing import TokenBatch


@dataclass
class RolloutStep:
    """One training batch."""

    collected: CollectedStep
    tokens: TokenBatch | None
    """None: no group to learn from."""
    sync_s: float
    started: float
    """time.perf_counter() when the step began."""
    metrics: dict[str, Any]
    """Of sampling, in the keys of docs/metrics.md."""

    @property
    def step(self) -> int:
        return self.collected.step

    @property
    def policy_version(self) -> int:
        """Of the weights that train on it."""
        return self.collected.policy_version
