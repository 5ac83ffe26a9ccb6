"""Metrics of a user's file: a function of a step's groups, with a name in words, a definition, a unit and a place.

A run that logs some has them in run.json, without their functions. Reading the run registers them here, so that reports
and pages name them as they name the metrics of the package.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """One metric from outside the package.

    >>> Metric("short_wrong", "short wrong answers", "share of completions that are wrong, below 5 tokens", "%").key
    'own/short_wrong'
    """

    name: str
    words: str
    definition: str
    """One sentence: what is averaged over what, and when there is nothing to measure."""
    unit: str = ""
    """`%` for a share, which is logged between 0 and 1; `tokens`, `nats`, ...; empty for a pure number."""
    panel: str = ""
    """The panel of run.html that has its curve: the title of one that is there, or a new one; empty: none."""
    measure: Callable[..., float | None] | None = None
    """(groups that the step generated) -> the number; None where there is nothing to measure."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w+", self.name):
            raise ValueError(
                f"a metric's name is letters, digits and _, not {self.name!r}; its key in metrics.jsonl is own/NAME"
            )
        if not self.words or not self.definition:
            raise ValueError(f"the metric {self.name} needs a name in words and a definition")

    @property
    def key(self) -> str:
        """In metrics.jsonl."""
        return f"own/{self.name}"

    @property
    def recorded(self) -> dict[str, Any]:
        """As run.json has it."""
        return {name: value for name, value in asdict(self).items() if name != "measure"}


METRICS: dict[str, Metric] = {}
"""By key: those of the runs that were read."""


def register_metrics(metrics: Iterable[Metric]) -> None:
    """Reports and pages name these metrics as they say."""
    METRICS.update({metric.key: metric for metric in metrics})


def own_unit(key: str) -> str | None:
    """The unit that a metric of a user's file declares; None for any other metric."""
    return METRICS[key].unit if key in METRICS else None
