"""Published results (docs/evidence.yaml), their signs next to the same comparison here, and why the two decide nothing.

A sign is compared at its own place: with the effect of the technique on top of what was on around it there, never with
its mean over all combinations. Around DAPO that is the mean over sets of base policies (pooled.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import pooled
import yaml
from around import name
from cells import ROOT, between, points
from scipy import stats

from ablations.compare.contrasts import difference
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
    where: str
    """What the effect here was read off."""

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
        folder, (treated, control) = row.get("in", CUBE), row["place"]
        effect = name(difference("", "", None, treated, control))
        if effect:
            here, where = (
                pooled.over_sets("sums", effect).estimate,
                f"over {pooled.over_sets('sums', effect).sets} sets",
            )
        else:
            here, where = (
                between(folder, treated, control).estimate,
                f"[{folder}](../experiments/{folder.split('/')[0]})",
            )
        found.append(Place(row, here, answer(row["sign"], here), where))
    return tuple(found)


def signs() -> str:
    """Markdown: the published signs that have a place here, and why the others have none."""
    lines = ["| technique | on top of | published | | here, points | |", "|---|---|---|---|---|---|"]
    for place in places():
        row = place.row
        cells_of = [_label(row), place.words, f"[{row['source']}]({row['url']})", row["sign"]]
        lines.append(f"| {' | '.join(cells_of)} | {points(place.here)}, {place.where} | {place.answer} |")
    reasons: dict[str, dict[str, None]] = {}
    for row in (row for row in rows() if "no_place" in row):
        reasons.setdefault(row["no_place"], {})[f"[{row['source']}]({row['url']})"] = None
    without = [f"- {reason}: {', '.join(sources)}" for reason, sources in reasons.items()]
    return "\n".join([*lines, "", "Without a place here:", "", *without])


def _label(row: dict[str, Any]) -> str:
    return REGISTER[row["about"]].label if row["about"] in REGISTER else str(row["about"])


def reliability(sizes: Sequence[float], sd: float) -> float:
    """How often a published sign is that of the true effect, mean over rows: the effect of each is its published size
    give or take the noise of a difference of two runs, and nothing was known before.

    >>> round(reliability([7.0], 7.0), 2), round(reliability([0.0, 7.0], 7.0), 2)
    (0.84, 0.67)
    """
    return float(np.mean(stats.norm.cdf(np.abs(sizes) / sd)))


def rows_needed(reliability: float, agree: float = 0.75) -> int:
    """Published signs that tell a chance of agreement from a coin, with power 80 % at a level of 5 %, one-sided.

    >>> rows_needed(1.0), rows_needed(0.8), rows_needed(0.7)
    (23, 69, 158)
    """
    chance = 0.5 + (agree - 0.5) * (2 * reliability - 1)
    for count in range(1, 10_000):
        least = stats.binom.isf(0.05, count, 0.5) + 1
        if stats.binom.sf(least - 1, count, chance) >= 0.8:
            return count
    raise ValueError(f"more than 10,000 rows at a reliability of {reliability}")


SD_OF_A_RUN = 5
"""Points: the low end of what `A sober look` (arXiv 2504.07086) found over evaluation seeds alone."""


def why_no_rate() -> str:
    """Markdown: what the agreement of signs is worth."""
    single = [place for place in places() if place.row["about"] in REGISTER]
    signed = [place for place in single if place.answer != "cannot tell"]
    agree, plus = (
        sum(test) for test in ([p.answer == "agrees" for p in signed], [p.row["sign"] == "+" for p in signed])
    )
    sizes = [float(place.row["points"]) for place in single if "points" in place.row]
    known = reliability(sizes, SD_OF_A_RUN * 2**0.5)
    listed = [row for row in rows() if row["sign"] is not None and row["about"] in REGISTER]
    return (
        f"The sign agrees in {agree} of the {len(signed)} rows where our interval gives one. That decides nothing:\n\n"
        f"- **One run is not a sign.** With a standard deviation of {SD_OF_A_RUN} points a run, the published sizes ("
        f"{min(sizes):g} to {max(sizes):g} points) have the true sign in {100 * known:.0f} % of the rows.\n"
        f"- **Too few.** To distinguish agreement of three in four from a coin takes {rows_needed(0.7)} rows of a "
        f"reliability of 0.7, or {rows_needed(0.8)} of 0.8 (power 80 %, 5 % one-sided); {len(listed)} are listed, "
        f"{len(single)} have the same comparison here.\n"
        f'- **"Always plus" agrees with {plus} of these {len(signed)} published signs.**\n'
        "- **Rows are selected**: one counts only where our own interval excludes 0. Five are rungs of one ladder, "
        "two of one rerun; models, tasks and horizons are others."
    )


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
