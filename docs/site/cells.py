"""Effects read off packed cells, for the made parts of pages: always over base policies, always from the raw cells."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
from around import of_several_sets

import dapo_lit as dapo_lit  # says how the configs of its runs are read
from ablations.compare.contrasts import Contrast, Effect, compare_on, contrasts, difference
from ablations.compare.equal_budget import sides
from ablations.compare.statistics import Estimate
from ablations.read.outcomes import amount, primary_metric
from ablations.read.runs import Runs, load

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"


@cache
def load_once(folder: Path) -> Runs:
    """The finished runs that are packed in a folder."""
    return load(folder).usable


def cells(folder: str) -> Runs:
    """The finished runs of a study by its folder below experiments/."""
    place = EXPERIMENTS / folder
    return load_once(place / "runs" if (place / "runs").is_dir() else place)


def on_accuracy(folder: str, contrast: Contrast, one_set: bool = False) -> Effect:
    """A comparison on the held-out accuracy of a study.

    one_set: it may be an effect around DAPO, for a study's own page or a mean over sets.
    """
    if not one_set:
        of_several_sets(folder, contrast)
    runs = cells(folder)
    return compare_on(runs, contrast, primary_metric(runs))


def between(folder: str, treated: str, control: str, one_set: bool = False) -> Effect:
    """One arm minus another, on the held-out accuracy of a study."""
    missing = {treated, control} - set(cells(folder).arms)
    if missing:
        raise SystemExit(f"experiments/{folder} has no arm {', '.join(sorted(missing))}")
    return on_accuracy(folder, difference("", f"{treated} - {control}", None, treated, control), one_set)


@cache
def main_effects(folder: str) -> Mapping[str, Contrast]:
    """By technique: the mean of the combinations with it minus the mean of those without."""
    found = contrasts(cells(folder).arms)
    return {str(one.technique): one for one in found if one.family == "main effects"}


def ratio(folder: str, contrast: Contrast) -> float:
    """Tokens that the arms of a comparison generated, with over without, geometric mean over seeds."""
    spent = [
        [np.mean([run.series("tokens_generated").max() for run in side]) for side in pair]
        for pair in sides(cells(folder), contrast)
    ]
    return float(np.exp(np.mean([np.log(treated / control) for treated, control in spent])))


def points(estimate: Estimate) -> str:
    """An effect on a share, in points with its interval.

    >>> points(Estimate(0.0624, 0.0402, 0.0847, 12, 0.03))
    '+6.2 [4.0, 8.5]'
    """
    key = "rollout/accuracy"
    low, high = (amount(key, end) for end in (estimate.low, estimate.high))
    return f"{amount(key, estimate.mean, signed=True)} [{low}, {high}]"
