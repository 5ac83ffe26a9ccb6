"""The section `regime`: what a task, base policies and settings are meant to show, named before it is tested."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from dapo_lit.config.sections import Section
from dapo_lit.techniques import REGISTER


class Control(Section):
    """The positive control of a technique: an extreme dose, and the outcome that it must move."""

    outcome: str
    """The metric that must move, such as rollout/entropy; that the switch fires does not count."""
    direction: Literal["up", "down"]
    """Sign of the outcome's difference, the last of `doses` minus the first."""
    steps: tuple[PositiveInt, PositiveInt] | None
    """The first and the last rollout step over which the outcome is averaged; null: the run's last values."""
    doses: Annotated[tuple[str, ...], Field(min_length=2)]
    """Arms by name in the order of the dose, none or weakest first, extreme last."""


class Regime(Section):
    name: str
    page: str
    """The page that says what the regime contains and what it cannot show."""
    steps: PositiveInt
    """The horizon of its studies, in rollout steps."""
    reference: str
    """The arm that is run twice as the placebo."""
    accuracy: bool = False
    """Studies in this regime claim held-out accuracy, so placebo and controls are judged on it as well."""
    techniques: dict[str, Control]
    """The techniques that the regime is meant for."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        if unknown := sorted(set(self.techniques) - set(REGISTER)):
            raise ValueError(f"techniques: {', '.join(unknown)} unknown; there are {', '.join(REGISTER)}")
        return self
