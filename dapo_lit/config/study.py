"""The section of a study: what its cells are and what it promises before the first of them runs."""

from typing import Annotated, Self

from pydantic import Field, PositiveInt, model_validator

from dapo_lit.config.sections import Section


class Event(Section):
    """A time-to-event outcome: the first step at which a metric exceeds a threshold."""

    key: str
    """The metric, such as task/steps_frac."""
    threshold: float
    treated: str
    """The two arms of the registered contrast, treated minus control."""
    control: str
    horizon: PositiveInt
    """In steps: what has not happened by then counts as not happened."""


class Study(Section):
    name: str
    """A design of dapo_lit/study/designs.py, or a name of your own together with `arms`."""
    arm: str | None
    """The arm of this run, by its name; a multirun runs all of them unless some are named."""
    arms: tuple[str, ...] | None
    """Arms of a study of your own, by name (dapo, dapo-clip_higher, dapo@clip.high=0.5); null: those of the design."""
    reference: str | None
    """The arm that the others are compared with; null: that of the design, or the first of `arms`."""
    metric: str
    """The primary metric."""
    seeds: tuple[int, ...]
    """What a multirun runs where the command line names no seed."""
    alpha: Annotated[float, Field(gt=0, lt=1)]
    event: Event | None
    """A registered contrast of times to an event; null: none."""
    declared: tuple[str, ...]
    """Config keys in which the arms may differ, beside those that the design declares."""
    packed: str | None
    """A folder of packed cells (status --pack); a cell that is there with the same config hash is not run again."""

    @model_validator(mode="after")
    def _seeds_once(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)}: one is named twice")
        return self
