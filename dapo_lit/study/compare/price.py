"""What a comparison costs on the five axes of budget, and what is left of its effect at an equal budget on each."""

from dataclasses import dataclass

import numpy as np

from dapo_lit.study.compare.contrasts import Contrast
from dapo_lit.study.compare.statistics import Estimate, fixed_bases_interval
from dapo_lit.study.read.curves import AXES, curve, value_at
from dapo_lit.study.read.runs import Run, Runs


@dataclass(frozen=True)
class Price:
    """One comparison on one axis."""

    ratio: float
    """Budget used with the technique over the budget used without it, geometric mean over pairs."""
    at_equal: Estimate | None
    """The difference in the metric where both have used as much; None where the curves have no such place."""


def price(runs: Runs, contrast: Contrast, key: str) -> dict[str, Price]:
    """The five axes, each at the largest budget that all runs of a seed reached; curves are interpolated."""
    cells = {(run.arm, run.seed): run for run in runs if run.usable and not run.spoilt(key)}
    seeds = [seed for seed in runs.seeds if all((arm, seed) in cells for arm in contrast.weights)]
    pairs = [[(weight, cells[arm, seed]) for arm, weight in contrast.weights.items()] for seed in seeds]
    found = {axis: _on_axis(pairs, key, axis) for axis in AXES}
    return {axis: one for axis, one in found.items() if one}


def _on_axis(pairs: list[list[tuple[float, Run]]], key: str, axis: str) -> Price | None:
    ratios, differences, bases = [], [], []
    for pair in pairs:
        curves = [(weight, curve(run, key, axis)) for weight, run in pair]
        if any(series.empty for _, series in curves):
            continue
        ends = {sign: [s.index[-1] for w, s in curves if w * sign > 0] for sign in (1, -1)}
        if not ends[1] or not ends[-1] or np.mean(ends[-1]) <= 0:
            continue
        ratios.append(np.log(np.mean(ends[1]) / np.mean(ends[-1])))
        budget = min(float(series.index[-1]) for _, series in curves)
        values = [(weight, value_at(series, budget)) for weight, series in curves]
        if all(value is not None for _, value in values):
            differences.append(sum(weight * value for weight, value in values if value is not None))
            bases.append(pair[0][1].base)
    if not ratios:
        return None
    return Price(float(np.exp(np.mean(ratios))), fixed_bases_interval(differences, bases) if differences else None)
