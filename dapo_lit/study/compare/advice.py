"""Can a technique act in a run? Its condition in the register against the run's rows, and the studies of this
project that the run resembles, with what was found there.

Resemblance is a rule of this project: every metric that the register names for the technique lies within a factor of
two, shares below 0.5 % counted as 0.5 %. It says where an effect was seen, not how large one will be: the studies are
of policies with 0.5M parameters, and no effect is carried over.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_lit.techniques import REGISTER, step_mean

FILE = Path(__file__).with_name("findings.json")
"""Made by docs/site/claims.py of the studies in docs/claims.yaml."""
FACTOR = 2.0
FLOOR = 0.005

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Found:
    """A technique's effect on held-out accuracy in one study."""

    technique: str
    study: str
    folder: str
    """Below experiments/."""
    measured: Mapping[str, float]
    """Means over the steps of the runs without the technique."""
    n: int
    """Base policies."""
    verdict: str
    """Of the registered test; empty where the comparison was not registered."""
    points: float
    low: float
    high: float
    sd: float
    """Standard deviation of a paired difference, in points."""

    @property
    def words(self) -> str:
        verdict = {"up": "a gain", "down": "a loss", "": "exploratory", "undecided": "not decided"}
        return (
            f"{self.points:+.1f} points of accuracy [{self.low:.1f}, {self.high:.1f}] on {self.n} base policies, "
            f"{verdict.get(self.verdict, self.verdict)}"
        )


@dataclass(frozen=True)
class Advice:
    """One technique in one run."""

    technique: str
    on: bool
    """In the run."""
    acts: bool | None
    """None: the run did not log what the condition needs."""
    amount: str
    """What was measured and what is needed, or why there is nothing."""
    facts: tuple[str, ...]
    """What else bears on it."""
    like: tuple[Found, ...]
    """The studies that the run resembles, most base policies first; none where it cannot act."""


def findings(file: Path = FILE) -> tuple[Found, ...]:
    """Every finding, one a technique and study."""
    return tuple(Found(**row) for row in json.loads(file.read_text()))


def advice(rows: Rows, settings: Mapping[str, Any], found: Iterable[Found]) -> list[Advice]:
    """Each technique in a run.

    rows: of metrics.jsonl, or the first of them.
    settings: the run's values below `algorithm`, by key (`clip.high`).
    """
    known = list(found)
    return [advice_on(technique, rows, settings, known) for technique in REGISTER]


def advice_on(technique: str, rows: Rows, settings: Mapping[str, Any], found: Iterable[Found]) -> Advice:
    """One technique in a run."""
    record, on = REGISTER[technique], bool(settings.get(f"techniques.{technique}"))
    regime = record.regime
    mean = regime.mean(rows, on)
    if idle := next(filter(None, (reason(settings.get) for reason in record.idle)), None):
        return Advice(technique, on, False, idle, (), ())
    if mean is None:
        metric = (regime.metric_while_on or regime.metric) if on else regime.metric
        return Advice(technique, on, None, f"{metric} was not logged", (), ())
    acts, amount = regime.measured(mean)
    measured = {regime.metric: mean} | {
        key: value for key in regime.like if (value := step_mean(rows, key)) is not None
    }
    facts = _facts(technique, rows, updates_of(settings))
    return Advice(technique, on, acts, amount, facts, resembling(technique, measured, found) if acts else ())


def updates_of(settings: Mapping[str, Any]) -> int:
    """Updates a step."""
    return int(settings["num_prompts"] // settings["minibatch_prompts"] * settings["epochs"])


def resembling(technique: str, measured: Mapping[str, float], found: Iterable[Found]) -> tuple[Found, ...]:
    """The studies of the technique with similar measurements, most base policies first and then the nearest."""
    distances = {
        each: max(_distance(measured[key], value) for key, value in each.measured.items())
        for each in found
        if each.technique == technique and set(each.measured) <= set(measured)
    }
    near = [each for each, distance in distances.items() if distance <= math.log(FACTOR)]
    return tuple(sorted(near, key=lambda each: (-each.n, distances[each])))


def _distance(a: float, b: float) -> float:
    """Of two non-negative values, on a logarithmic scale."""
    return abs(math.log(max(a, FLOOR) / max(b, FLOOR)))


def _facts(technique: str, rows: Rows, updates: int) -> tuple[str, ...]:
    """Measurements that the condition does not hold and that bear on the technique."""

    def mean(key: str, words: str, form: str = ".0f") -> str | None:
        value = step_mean(rows, key)
        return None if value is None else words.format(format(value, form))

    of_each: dict[str, list[str | None]] = {
        "clip_higher": [f"{updates} update{'' if updates == 1 else 's'} a step"],
        "dynamic_sampling": [
            mean("rollout/groups_all_wrong_frac", "{} of the groups all wrong", ".1%"),
            mean("rollout/groups_all_correct_frac", "{} all right", ".1%"),
        ],
        "token_level_loss": [
            mean("rollout/length_wrong", "wrong answers have {} tokens"),
            mean("rollout/length_correct", "right ones {}"),
        ],
    }
    lengths = [mean("rollout/length_mean", "mean length {} tokens"), mean("rollout/length_max", "longest {}")]
    return tuple(fact for fact in of_each.get(technique, lengths) if fact)
