"""The register of techniques: all that reading, statistics, reports and figures know about a switch.

The records are data. A trainer hands its own over with `register`, where it is imported; until then the register is
that of techniques.json, which docs/site/made.py makes of dapo_lit/techniques.py. Runs that were made before a switch
existed read as off.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ablations.metrics import Metric
from ablations.texts import read_text

Lookup = Callable[[str], Any]
"""The value of a key below `algorithm`, such as `clip.high`, or of `rollout.steps_ahead`; None where it is not
known."""


def step_mean(rows: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """Mean of a metric, or of a ratio `a:b` of two, over rollout steps; None where no step has it."""
    if ":" in key:
        above, below = (step_mean(rows, part) for part in key.split(":"))
        return above / below if above is not None and below else None
    values = [row[key] for row in rows if row["step"] > 0 and row.get(key) is not None]
    return float(sum(values) / len(values)) if values else None


@dataclass(frozen=True)
class Condition:
    """The amount of something that training needs before a technique can act, measured in runs without it."""

    metric: str
    words: str
    """The thing that the metric counts."""
    least: float
    """Below this mean over steps the technique has next to nothing to act on."""
    inverted: bool = False
    """One minus the metric is what counts."""
    share: bool = True
    """Printed in percent."""
    metric_while_on: str | None = None
    """The metric of a run in which the switch is on; None: `metric`."""
    lowered: bool = False
    """The technique lowers the metric: a run in which it is on shows in its first step only what there was."""
    instead: tuple[str, str] | None = None
    """Another metric that shows that it acts, from the same size on, and what that one is."""
    lever: str = ""
    """The key that gives the technique more to act on, in a sentence."""
    source: str = ""
    """The source of `least`."""
    like: tuple[str, ...] = ()
    """Further metrics, and ratios `a:b` of two, in which runs have to resemble each other before an effect that was
    found in one says something about the other."""

    def mean(self, rows: Iterable[Mapping[str, Any]], on: bool) -> float | None:
        """Mean of the metric over the steps of a run in which the switch is on or off; None: it was not logged."""
        return step_mean(rows, (self.metric_while_on or self.metric) if on else self.metric)

    def judged(self, rows: Sequence[Mapping[str, Any]], on: bool) -> tuple[bool | None, str]:
        """True if the technique can act in a run of these rows, None if that is unknown; and why, in words."""
        rows = [row for row in rows if row["step"] > 0]
        if on and self.lowered:
            rows = [row for row in rows if row["step"] == 1]
        if (mean := self.mean(rows, on)) is None:
            return None, f"{self.words}: not logged" + " of the first step" * (on and self.lowered)
        acts, amount = self.measured(mean)
        amount += " in the first step" * (on and self.lowered)
        size = None if acts or self.instead is None else step_mean(rows, self.instead[0])
        if self.instead is None or size is None or abs(size) < self.least:
            return acts, amount
        return True, f"{amount}; but {self.instead[1]} is {abs(size):.3f}"

    def measured(self, metric_mean: float) -> tuple[bool, str]:
        """True if the technique can act, and the number in words with the one that is needed."""
        value = 1 - metric_mean if self.inverted else metric_mean
        text = f"{value:.1%} (needs {self.least:.1%})" if self.share else f"{value:.2f} (needs {self.least:g})"
        # By the number as it is shown: 1 - 0.9 is a bit below 0.1.
        return round(value, 3 if self.share else 2) >= self.least, f"{self.words}: {text}"


@dataclass(frozen=True)
class Caution:
    """What a technique does besides what it is for, by what runs measure."""

    metric: str
    """In a run in which the switch is on."""
    words: str
    metric_while_off: str
    """What the technique would do it to, in a run in which the switch is off."""
    words_while_off: str
    least: float
    """Shares below this are not worth a line."""
    remedy: str
    averts: str
    """The switch that averts it."""

    def text(self, rows: Iterable[Mapping[str, Any]], on: bool | None, averted: bool) -> str:
        """A sentence with the share measured; empty where there is next to none, or none was logged.

        on: None: the run's settings are not known.
        averted: the switch that averts it is on.
        """
        key, words = (self.metric, self.words) if on else (self.metric_while_off, self.words_while_off)
        if averted and not on:
            return ""
        share = step_mean(rows, key)
        return f"caution: {share:.1%} {words}; {self.remedy}" if share is not None and share >= self.least else ""


@dataclass(frozen=True)
class OwnSetting:
    """A setting that acts only while the switch is on (or off), and its value that changes nothing."""

    key: str
    neutral: Any
    while_on: bool = True


@dataclass(frozen=True)
class Technique:
    """One switch, `algorithm.techniques.<switch>`."""

    switch: str
    section: str
    """Section of arXiv 2503.14476, or another source."""
    equation: str
    """Empty where the source states none."""
    on: str
    off: str
    label: str
    short: str
    """Names it at the end of a line in a figure."""
    colour: str
    condition: Condition
    never_acted: tuple[str, str] | None = None
    """A metric that stays 0 in a run in which the switch is on and nothing happens, and what to say then."""
    idle: tuple[Callable[[Lookup], str | None], ...] = ()
    """Each: why the switch changes nothing under some settings; None where it does."""
    loss_argument: tuple[str, str] | None = None
    """The argument of the loss through which it acts, and what that argument is."""
    settings: tuple[OwnSetting, ...] = ()
    caution: Caution | None = None
    advantages: Callable[..., Any] | None = None
    """Of a technique in a user's file: (advantages [N], completions [N]) -> what becomes of the advantages [N]."""
    keeps: Callable[..., Any] | None = None
    """Of a technique in a user's file: (lengths [B], truncated [B], correct [B]) -> [B] bool, which completions carry
    loss."""
    metrics: tuple[Metric, ...] = ()
    """Of a technique in a user's file: what it is measured by, logged with and without it."""

    @property
    def description(self) -> str:
        """Its source and what the switch does, as the documentation of the config key."""
        return f"{', '.join(filter(None, (self.section, self.equation)))}: {self.on}; off: {self.off}."

    def without_argument(self, settings: Mapping[str, Any], arguments: Collection[str] | None) -> str | None:
        """Why it cannot act with a loss that reads only these arguments; None where it can, or nobody recorded them."""
        if self.loss_argument is None or arguments is None or self.loss_argument[0] in arguments:
            return None
        return f"loss={settings.get('loss')} has no {self.loss_argument[1]}"

    @property
    def recorded(self) -> dict[str, Any]:
        """Everything but its code, as JSON has it."""
        return {key: value for key, value in asdict(self).items() if key not in CODE}


def is_own(technique: str) -> bool:
    """True for one in a user's file, which is named by its path."""
    return "." in technique


CODE = ("idle", "advantages", "keeps", "metrics")
"""Fields of a Technique that are code, or have some."""
FILE = Path(__file__).with_name("techniques.json")


def read_techniques(text: str) -> list[Technique]:
    """The records of techniques.json: every field of a Technique but those of CODE, which ask for settings and tensors
    that a log does not have."""
    return [
        Technique(
            **row
            | {
                "condition": Condition(**{key: _frozen(value) for key, value in row["condition"].items()}),
                "caution": row["caution"] and Caution(**row["caution"]),
                "settings": tuple(OwnSetting(**setting) for setting in row["settings"]),
            }
            | {key: _frozen(row[key]) for key in ("never_acted", "loss_argument")}
        )
        for row in json.loads(text)
    ]


def techniques_text(techniques: Iterable[Technique]) -> str:
    """What `read_techniques` reads."""
    return json.dumps([each.recorded for each in techniques], indent=1) + "\n"


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


REGISTER: dict[str, Technique] = {}
"""By switch. Names of arms and the rows of tables keep this order, which begins with that of the paper's Table 1."""


def register(techniques: Iterable[Technique]) -> None:
    """Makes these the techniques that are known, in this order."""
    REGISTER.clear()
    REGISTER.update({technique.switch: technique for technique in techniques})


register(read_techniques(read_text(FILE)))

LADDER = (
    "overlong_filtering",
    "clip_higher",
    "soft_overlong_punishment",
    "token_level_loss",
    "dynamic_sampling",
)
"""The paper's Table 1 adds these to naive GRPO, in this order. Techniques registered later are not part of it."""

NAIVE_GRPO: frozenset[str] = frozenset()
DAPO = frozenset({"clip_higher", "soft_overlong_punishment", "token_level_loss", "dynamic_sampling"})
"""Switches that are on in the two references."""
