"""Can a technique act in a run? Its condition in the register against the run's rows, and the studies of this
project that the run resembles, with what was found there.

Studies of the run's own regime come first. Resemblance is a rule of this project: every metric that the register names
for the technique lies within a factor of two, shares below 0.5 % counted as 0.5 %. It says where an effect was seen,
not how large one will be: the studies are of policies with 0.5M parameters, and no effect is carried over.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.read.outcomes import in_words
from ablations.techniques import DAPO, REGISTER, step_mean
from ablations.texts import json_tree, read_bytes

FILE = Path(__file__).with_name("findings.json")
"""Made by docs/site/made.py of the studies in docs/claims.yaml."""
FACTOR, FLOOR = 2.0, 0.005


@dataclass(frozen=True, eq=False)
class Found:
    """A technique's effect on held-out accuracy in one study, in points."""

    technique: str
    study: str
    folder: str
    """Below experiments/."""
    measured: Mapping[str, float]
    """Means over the steps of the runs without the technique."""
    n: int
    """Base policies."""
    verdict: str
    """Verdict of the registered test; empty where the comparison was not registered."""
    points: float
    low: float
    high: float
    sd: float
    """Standard deviation of a paired difference."""

    @property
    def regime(self) -> str | None:
        """The regime that it was run in; None where it changed a setting of it, such as the updates of a step."""
        _, *place = self.study.split(", ")
        return place[0] if len(place) == 1 else None

    @property
    def left_out(self) -> bool:
        """DAPO with and without the technique, not a mean over combinations or a technique added to GRPO."""
        return self.study.startswith("left out")

    def __str__(self) -> str:
        verdict = {"up": "a gain", "down": "a loss", "": "exploratory", "undecided": "not decided"}
        over = ", averaged over the other switches" if "factorial" in self.study else ""
        return (
            f"{self.study} (experiments/{self.folder}): {self.points:+.1f} points of accuracy [{self.low:.1f}, "
            f"{self.high:.1f}] on {self.n} base policies{over}, {verdict.get(self.verdict, self.verdict)}"
        )


@dataclass(frozen=True)
class Advice:
    """Whether a technique can act in a run, and similar studies."""

    technique: str
    on: bool | None
    """In the run; None: its settings are not known."""
    acts: bool | None
    """None: the run did not log what the condition needs."""
    amount: str
    """The amount measured and the amount needed, or why there is nothing."""
    like: tuple[Found, ...] = ()
    """The studies of its regime, then those that it resembles, most base policies first; none where it cannot act."""
    compared: bool = True
    """False where the run did not log what such studies resemble each other in."""
    caution: str = ""
    """What else the technique does to the run, or would do, in a sentence; empty for nothing."""
    regime: str | None = None
    """The run's own, where the first of `like` is a study of it."""


def findings() -> tuple[Found, ...]:
    """Every finding, one a technique and study."""
    return tuple(Found(**row) for row in json_tree(read_bytes(FILE), FILE))


def advice(
    technique: str, rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], found: Iterable[Found]
) -> Advice:
    """One technique in a run.

    rows: of metrics.jsonl, or the first of them.
    settings: the run's values below `algorithm`, by key (`clip.high`), and `loss_arguments`, which its loss reads;
        empty where they are not known.
    """
    record, on = REGISTER[technique], bool(settings.get(f"techniques.{technique}")) if settings else None
    reasons = [reason(settings.get) for reason in record.idle if settings]
    reasons.append(record.without_argument(settings, settings.get("loss_arguments")))
    if idle := next(filter(None, reasons), None):
        return Advice(technique, on, False, idle)
    acts, amount = record.condition.judged(rows, bool(on))
    if (mean := record.condition.mean(rows, bool(on))) is None or acts is None:
        return Advice(technique, on, None, amount)
    others = {key: value for key in record.condition.like if (value := step_mean(rows, key)) is not None}
    parts = [part for key in record.condition.like for part in key.split(":")]
    unknown = [in_words(part) for part in parts if step_mean(rows, part) is None]
    words = [f"{' over '.join(map(in_words, key.split(':')))} {value:.3g}" for key, value in others.items()]
    known, regime = tuple(found), settings.get("regime")
    near = resembling(technique, {record.condition.metric: mean} | others, known) if acts else ()
    # A study of the run's own regime says more than one with similar amounts; of equally large ones, DAPO's for DAPO.
    dapo = all(bool(settings.get(f"techniques.{name}")) == (name in DAPO) for name in REGISTER if name != technique)
    own = [each for each in known if acts and regime and each.technique == technique and each.regime == regime]
    own.sort(key=lambda each: (-each.n, each.left_out != dapo))
    near = (*own, *(each for each in near if each not in own))
    if acts and unknown and not own:
        words.append(f"not compared with studies, which needs {' and '.join(unknown)}")
    caution, other = record.caution, "" if record.caution is None else f"techniques.{record.caution.averts}"
    text = caution.text(rows, on, bool(settings.get(other))) if caution and acts else ""
    return Advice(
        technique,
        on,
        acts,
        "; ".join([amount, *words]),
        near,
        bool(own) or not unknown,
        text,
        str(regime) if own else None,
    )


def resembling(technique: str, measured: Mapping[str, float], found: Iterable[Found]) -> tuple[Found, ...]:
    """The studies of the technique with similar measurements, most base policies first and then the nearest."""
    distances = {
        each: max(abs(math.log(max(measured[key], FLOOR) / max(value, FLOOR))) for key, value in each.measured.items())
        for each in found
        if each.technique == technique and set(each.measured) <= set(measured)
    }
    near = [each for each, distance in distances.items() if distance <= math.log(FACTOR)]
    return tuple(sorted(near, key=lambda each: (-each.n, distances[each])))


def updates_of(settings: Mapping[str, Any]) -> int:
    return int(settings["num_prompts"] // settings["minibatch_prompts"] * settings["epochs"])
