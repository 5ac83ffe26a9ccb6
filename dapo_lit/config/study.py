"""The sections `study` and `regime`: cells, and what is registered before the first of them runs; and a task,
base policies and settings, with the effects that they are expected to show, declared in advance.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from ablations.border import FolderName
from ablations.techniques import REGISTER
from dapo_lit.config.sections import Listed, PositiveInt, Section


class Control(Section):
    """The positive control of a technique: an extreme setting, and the outcome that it must change."""

    outcome: str
    """The metric that must change, such as rollout/entropy (not a metric of the switch itself)."""
    direction: Literal["up", "down"]
    """Sign of the outcome's difference, the last of `doses` minus the first."""
    steps: Listed[tuple[PositiveInt, PositiveInt]] | None
    """The first and the last rollout step over which the outcome is averaged; null: the run's last values."""
    doses: Annotated[Listed[tuple[str, ...]], Field(min_length=2)]
    """Arms by name in the order of their strength, none or weakest first, extreme last."""


class Regime(Section):
    name: FolderName
    steps: PositiveInt
    """The horizon of its studies, in rollout steps."""
    reference: str
    """The arm that is run twice as the placebo."""
    accuracy: bool = False
    """Studies in this regime claim held-out accuracy, so placebo and controls are judged on it as well."""
    techniques: dict[str, Control]
    """The techniques that the regime is meant for."""

    def faults(self) -> Iterator[str]:
        if unknown := sorted(set(self.techniques) - set(REGISTER)):
            yield f"techniques: {', '.join(unknown)} unknown; there are {', '.join(REGISTER)}"


class Fork(Section):
    run: str
    """The folder of the run that is continued, such as runs/dapo/dapo/seed_0."""
    steps: Listed[tuple[PositiveInt, ...]] | None
    """Steps before which that run kept its training state (replay.record); a study for each. null: all of them."""
    horizon: PositiveInt
    """Rollout steps from each of them."""


class Study(Section):
    name: FolderName
    """The study's name, which its runs record."""
    arm: FolderName | None
    """The arm of this run; a multirun runs all arms unless some are named."""
    arms: Listed[tuple[str, ...]] | None
    """Arms by name (dapo, dapo-clip_higher, dapo@clip.high=0.5), or words for several: ladder, cube, half_fraction,
    leave_one_out, add_one_in. null: a calibration, whose arms the regime names."""
    reference: str | None
    """The arm that the others are compared with; null: the first of `arms`."""
    metric: str
    """The primary metric."""
    seeds: Listed[tuple[int, ...]]
    """Seeds of a multirun whose command line names none."""
    bases: Listed[tuple[int, ...]]
    """Base policies that the seeds take in turn, so that seeds are nested in bases; []: each seed has its own."""
    alpha: Annotated[float, Field(gt=0, lt=1)]
    """Error of the whole study."""
    families: dict[str, Annotated[float, Field(gt=0, lt=1)]] | None
    """The families of comparisons that are decided, each with its share of alpha: names as a report gives them (main
    effects, interactions, ladder, left out of DAPO, ...), or `outcomes of the regime`. null: the first that the arms
    allow."""
    pairs: dict[str, Listed[tuple[str, ...]]] | None
    """Comparisons of any two arms, by the family that decides them, {against DAPO: [dapo@clip.high=0.5 - dapo]}, or of
    two such differences: (treated - control) - (treated - control)."""
    budgets: Listed[tuple[PositiveInt, ...]]
    """Generated tokens at which a report gives differences at equal tokens, registered with the study; []: it takes
    quarters of what all runs reach."""
    margin: Annotated[float, Field(gt=0)] | None
    """A difference of the metric that is too small to matter; null: none is named, so no arms are called equivalent."""
    until: Literal["decided"] | None
    """`decided`: look after every few seeds, and stop once every registered comparison is decided; null: all seeds."""
    max_pairs: PositiveInt
    """The most seeds that `until` runs; alpha is spent over them."""
    underpowered: bool
    """Run the study although its exact test cannot reach alpha with these seeds."""
    pilot: bool
    """Run it whatever the state of the code, and register no comparison: its report has effects without verdicts. A
    study of a checkout with uncommitted changes has to be one."""
    workers: PositiveInt | None
    """Cells that a multirun runs at once; null: as many as there are cores (one on a GPU)."""
    registered_in: str | None
    """A folder of the checkout into which the launch commits the plan before the first cell, so that git shows which is
    older; null: the plan stays with the runs."""
    packed: str | None
    """A folder of packed cells (status --pack); a cell packed there with the same config is not run again."""

    def faults(self) -> Iterator[str]:
        if len(set(self.seeds)) < len(self.seeds):
            yield f"seeds {list(self.seeds)}: one is named twice"
        if self.until and len(self.bases) > 1:
            yield "until: several looks need one base policy, or one for each seed (bases: [])"
        if unnamed := sorted(set(self.pairs or {}) - set(self.families or {})):
            yield f"pairs: {', '.join(unnamed)} has no share of alpha; name it in families too"
        if self.families and sum(self.families.values()) > self.alpha * (1 + 1e-9):
            yield f"families {self.families}: their shares exceed alpha {self.alpha:g}"
