"""Published results (docs/evidence.yaml), and how often the sign of an ablation is the sign of the same one here.

A sign is compared at its own place: with the effect of the technique on top of what was on around it there, never with
its mean over all combinations. `places` reads the rows; `evidence`, `hit_rate` and `hits` write the made parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import yaml
from cells import ROOT, between, main_effects, on_accuracy, points
from scipy import stats

from ablations.compare.statistics import Estimate
from ablations.designs import read_arm
from ablations.techniques import REGISTER

CUBE = "factorial_joint"
MARGIN = 0.02
"""A smaller difference counts as none, as registered for the cube."""
Answer = Literal["agrees", "disagrees", "cannot tell"]


@dataclass(frozen=True)
class Place:
    """A published sign with the effect of the same comparison here."""

    row: dict[str, Any]
    here: Estimate
    answer: Answer
    on_average: Answer | None
    """The answer of the technique's main effect, whatever was on around it; None for several techniques at once."""

    @property
    def words(self) -> str:
        """GRPO with the techniques that are on in the arm without."""
        on = read_arm(self.row["place"][1]).on
        names = [technique.label for switch, technique in REGISTER.items() if switch in on]
        return f"GRPO with {', '.join(names)}" if names else "GRPO"


def answer(sign: str, here: Estimate) -> Answer:
    """What an interval here says about a published sign.

    >>> answer("+", Estimate(0.03, 0.01, 0.05, 12, 0.03)), answer("0", Estimate(0.0, -0.01, 0.01, 12, 0.02))
    ('agrees', 'agrees')
    >>> answer("-", Estimate(0.03, 0.01, 0.05, 12, 0.03)), answer("-", Estimate(0.0, -0.01, 0.01, 12, 0.02))
    ('disagrees', 'cannot tell')
    """
    low, high = here.low or 0.0, here.high or 0.0
    if sign == "0":
        return "agrees" if max(-low, high) <= MARGIN else "disagrees" if low * high > 0 else "cannot tell"
    if sign not in "+-" or low * high <= 0:
        return "cannot tell"
    return "agrees" if (here.mean > 0) == (sign == "+") else "disagrees"


def rows() -> list[dict[str, Any]]:
    """docs/evidence.yaml."""
    return list(yaml.safe_load((ROOT / "docs" / "evidence.yaml").read_text(encoding="utf-8")))


@cache
def places() -> tuple[Place, ...]:
    """Every published sign that has a place here, in the order of the file."""
    found = []
    for row in (row for row in rows() if "place" in row):
        here, technique = between(row.get("in", CUBE), *row["place"]).estimate, row["about"]
        mean = (
            answer(row["sign"], on_accuracy(CUBE, main_effects(CUBE)[technique]).estimate)
            if technique in REGISTER
            else None
        )
        found.append(Place(row, here, answer(row["sign"], here), mean))
    return tuple(found)


def _counted(answers: Sequence[Answer | None]) -> tuple[int, int]:
    """Signs that agree, and signs that can be told."""
    return answers.count("agrees"), sum(one in ("agrees", "disagrees") for one in answers)


def hit_rate() -> str:
    """The verdict: how many signs agree, with the exact interval, against a coin."""
    single = [place for place in places() if place.row["about"] in REGISTER]
    agree, told = _counted([place.answer for place in single])
    low, high = stats.binomtest(agree, told).proportion_ci(method="exact")
    mean_agree, mean_told = _counted([place.on_average for place in single])
    verdict = (
        "no better than a coin" if low <= 0.5 <= high else "better than a coin" if low > 0.5 else "worse than a coin"
    )
    unplaced = sum("no_place" in row for row in rows())
    return (
        f"**{agree} of {told} signs agree ({agree / told:.0%}, exact 95 % interval {low:.0%} to {high:.0%}): "
        f"{verdict}.** {len(single) - told} more have a place here and cannot be told, {unplaced} have none. Read off "
        f"the mean over all combinations instead of the place, {mean_agree} of {mean_told} agree."
    )


def hits() -> str:
    """Markdown: a row a published sign with its place, then those without one."""
    lines = ["| technique | on top of | published | | here, points | |", "|---|---|---|---|---|---|"]
    for place in places():
        row = place.row
        label = REGISTER[row["about"]].label if row["about"] in REGISTER else row["about"]
        study = row.get("in", CUBE)
        source = f"[{row['source']}]({row['url']}), {row['model']}, {row['task']}"
        effect = f"[{points(place.here)}](../experiments/{study.split('/')[0]})"
        lines.append(
            f"| {label} | {place.words} | {row['result']}: {source} | {row['sign']} | {effect} | {place.answer} |"
        )
    lines += ["", "Without a place here:", "", "| technique | published | | why |", "|---|---|---|---|"]
    for row in (row for row in rows() if "no_place" in row):
        label = REGISTER[row["about"]].label if row["about"] in REGISTER else row["about"]
        lines.append(f"| {label} | [{row['source']}]({row['url']}) | {row['sign']} | {row['no_place']} |")
    return "\n".join(lines)


def evidence() -> str:
    """Markdown: a section for each technique and each other heading of docs/evidence.yaml."""
    placed = {(place.row["about"], place.row["url"], place.row["result"]): place for place in places()}
    parts = []
    for about in dict.fromkeys(row["about"] for row in rows()):
        label = REGISTER[about].label.capitalize() if about in REGISTER else about
        lines = [f"## {label}", "", "| sign | here | result | model | task | runs | source | read |", "|---" * 8 + "|"]
        for row in (row for row in rows() if row["about"] == about):
            place = placed.get((row["about"], row["url"], row["result"]))
            lines.append(_evidence_row(row, f"{points(place.here)}, {place.answer}" if place else ""))
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _evidence_row(row: dict[str, Any], here: str) -> str:
    read = f"**{row['read']}**" if row["read"] == "second-hand" else row["read"]
    known = (row["sign"] or "", here, row["result"], row["model"] or "", row["task"] or "", row["runs"] or "not stated")
    return "| " + " | ".join(map(str, known)) + f" | [{row['source']}]({row['url']}) | {read} |"
