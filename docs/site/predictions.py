"""Every prediction of a study against its cells, in one made table, so that none is left out of a page.

`experiments/STUDY/predictions.yaml`, committed before the first run, is a list of

    says: the group's mean minus the mini-batch's is within two points      # Markdown
    effect: [three_means/joint, "dapo@token_level_denominator=group:dapo"]  # study and comparison as in inline.py
    between: [-2, 2]    # in points or the metric's unit; an end may be another effect, null is no end

or, instead of `effect`, `times: [METRIC, STUDY, ARM, ARM]`: the first arm's mean over runs and steps over the second's;
or, instead of both, `ordered: [METRIC, STUDY, [ARM, ...]]`: the means of these arms in the last step ascend or descend.
A prediction with none of them is shown as not evaluated. What holds, holds in the estimates.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import inline
import stated
import yaml
from cells import EXPERIMENTS

from ablations.compare.contrasts import Effect
from ablations.files.layout import CELLS
from ablations.read.outcomes import unit

FILE = "predictions.yaml"


def table(folder: Path) -> str:
    """Markdown: what was predicted, what was measured, and whether it holds."""
    rows = yaml.safe_load((folder / FILE).read_text(encoding="utf-8"))
    lines = ["| predicted | measured | |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row['says']} | {' | '.join(judged(row))} |" for row in rows)])


def has_cells(study: str) -> bool:
    """False for a study that is registered and has not ended."""
    return any((EXPERIMENTS / study).rglob(CELLS))


def judged(row: dict[str, Any]) -> tuple[str, str]:
    """(what was measured, `holds` or `fails`) of a prediction."""
    if "effect" in row and has_cells(row["effect"][0]):
        found = inline.effect(*row["effect"])
        low, high = (_end(end) for end in row["between"])
        return inline.SHOWS["points"](found), verdict(_size(found), low, high)
    if "times" in row and has_cells(row["times"][1]):
        metric, study, *arms = row["times"]
        one, other = (stated.mean(metric, study, arm) for arm in arms)
        return f"{one:.3g} and {other:.3g}: {one / other:.3g} times", verdict(one / other, *row["between"])
    if "ordered" in row and has_cells(row["ordered"][1]):
        metric, study, arms = row["ordered"]
        means = [stated.at(metric, study, arm, "-1") for arm in arms]
        return ", ".join(f"{mean:.3g}" for mean in means), "holds" if ordered(means) else "fails"
    return "", "not evaluated"


def verdict(value: float, low: float | None, high: float | None) -> str:
    """
    >>> verdict(0.4, 0, 1.4), verdict(2.1, 0.6, 0), verdict(-3, None, 2)
    ('holds', 'fails', 'holds')
    """
    if low is not None and high is not None and low > high:  # "between 0 and what another arm has", whatever its sign
        low, high = high, low
    return "holds" if (low is None or low <= value) and (high is None or value <= high) else "fails"


def ordered(values: Sequence[float]) -> bool:
    """
    >>> ordered([1, 2, 4]), ordered([4, 2, 1]), ordered([1, 4, 2])
    (True, True, False)
    """
    rises = [b > a for a, b in itertools.pairwise(values)]
    return all(rises) or not any(rises)


def _end(end: float | Sequence[str] | None) -> float | None:
    return end if end is None or isinstance(end, int | float) else _size(inline.effect(*end))


def _size(found: Effect) -> float:
    """An effect in the unit that pages give it in."""
    return found.estimate.mean * (100 if unit(found.outcome) == "points" else 1)
