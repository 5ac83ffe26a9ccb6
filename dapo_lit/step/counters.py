"""The cumulative x-axes of a run, over resumes; evaluation and downtime excluded."""

from dataclasses import asdict, dataclass


@dataclass
class Counters:
    step: int = 0
    """Rollout steps done."""
    gradient_step: int = 0
    """Optimiser steps done."""
    tokens_generated: int = 0
    """Response tokens sampled for training, discarded ones included."""
    tokens_trained: int = 0
    """Response tokens that carried loss, once an epoch."""
    wall_s: float = 0.0
    """Seconds in rollout steps."""

    def state_dict(self) -> dict[str, float]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, float]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
