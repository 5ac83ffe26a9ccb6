"""Do effects of forks have the signs and sizes of whole-run effects on the same base policies?

python experiments/fork_validation/compare.py runs/fork_validation_joint experiments/factorial_joint/runs

Points of training accuracy, each state by itself. Rules: docs/calibration.md, "Does a fork predict the whole run?".
"""

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from scipy import stats

from ablations.designs import read_arm
from ablations.read.runs import Runs, load
from ablations.techniques import REGISTER

KEY = "rollout/accuracy"
OWN = "dapo"
LAST = 2
"""Steps whose mean is compared: the last two of a fork, and of a whole run."""
STREAMS = 4
"""Of sampling noise; the own switches have as many again, for the placebo."""


class Row(NamedTuple):
    """A technique's effect from one state of one run, and in a pair of whole runs from the same base policy."""

    technique: str
    base: int
    fork: float
    half_width: float
    whole: float


def last_steps(runs: Runs, arm: str) -> dict[int, float]:
    """Training accuracy in points by seed."""
    return {run.seed: 100 * float(run.series(KEY).iloc[-LAST:].mean()) for run in runs.of(arm)}


def effects(runs: Runs) -> dict[str, dict[int, float]]:
    """With minus without each technique around DAPO, by technique and seed."""
    own, found = last_steps(runs, OWN), {}
    for arm in runs.arms:
        toggled = read_arm(arm).on ^ read_arm(OWN).on
        if len(toggled) != 1 or read_arm(arm).settings:
            continue
        (technique,) = toggled
        sign = 1 if technique in read_arm(OWN).on else -1
        found[technique] = {s: sign * (own[s] - y) for s, y in last_steps(runs, arm).items() if s in own}
    return {technique: found[technique] for technique in REGISTER if technique in found}


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half-width of a 95 % t-interval."""
    return fmean(values), stats.t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5


def sign_flip(values: np.ndarray) -> float:
    """Two-sided p of a mean over base policies, all sign assignments."""
    flips = np.array(list(product((1, -1), repeat=len(values))))
    means = np.abs(flips @ values) / len(values)
    return float((means >= abs(values.mean()) - 1e-12).mean())


class Summary(NamedTuple):
    """Signs and sizes of forks against whole runs, next to the mean whole-run effect of the other base policies."""

    fork: float
    whole: float
    effects: int
    decided: int
    agree: int
    """Of the decided ones, with the whole run's sign."""
    low: float
    high: float
    by_mean: int
    error: float
    error_of_mean: float
    p: float


class State(NamedTuple):
    """What was found of the states before one step."""

    step: int
    placebos_decided: int
    placebos: int
    of: dict[str, Summary]
    """By technique, and of `all`."""


def states(forks: Path, whole: Path) -> Iterator[State]:
    wholes = effects(load(whole).usable)
    for step in sorted({int(folder.name.removeprefix("step_")) for folder in forks.glob("*/step_*")}):
        rows: list[Row] = []
        nulls = []
        for folder in sorted(forks.glob(f"*/step_{step:06d}")):
            base = int(folder.parent.name.rpartition("_")[2])
            runs = load(folder).usable
            own = last_steps(runs, OWN)
            for technique, by_stream in effects(runs).items():
                rows.append(Row(technique, base, *interval(list(by_stream.values())), wholes[technique][base]))
            nulls.append(interval([own[stream] - own[stream + STREAMS] for stream in range(STREAMS)]))
        found = {name: summary([row for row in rows if name in (row.technique, "all")]) for name in (*wholes, "all")}
        yield State(step, sum(abs(mean) > half for mean, half in nulls), len(nulls), found)


def summary(rows: list[Row]) -> Summary:
    others = [fmean(o.whole for o in rows if o.technique == r.technique and o.base != r.base) for r in rows]
    decided = [(r, other) for r, other in zip(rows, others, strict=True) if abs(r.fork) > r.half_width]
    agree = sum(np.sign(r.fork) == np.sign(r.whole) for r, _ in decided)
    low, high = stats.binomtest(agree, len(decided)).proportion_ci() if decided else (float("nan"),) * 2
    by_mean = sum(np.sign(other) == np.sign(r.whole) for r, other in decided)
    errors = {base: [] for base in sorted({r.base for r in rows})}
    for r, other in zip(rows, others, strict=True):
        errors[r.base].append((abs(r.fork - r.whole), abs(other - r.whole)))
    of_fork, of_mean = (np.array([fmean(e[i] for e in of_base) for of_base in errors.values()]) for i in (0, 1))
    return Summary(
        fmean(r.fork for r in rows), fmean(r.whole for r in rows), len(rows), len(decided), int(agree), low, high,
        int(by_mean), of_fork.mean(), of_mean.mean(), sign_flip(of_mean - of_fork),
    )  # fmt: skip


def main(forks: Path, whole: Path) -> None:
    for state in states(forks, whole):
        print(f"state before step {state.step}")
        print(f"  placebo: {state.placebos_decided} of {state.placebos} decided, nominal 5 %")
        for technique, one in state.of.items():
            signs = f"{one.decided} of {one.effects} decided, {one.agree} with the whole run's sign"
            by_mean = f"[{one.low:.2f}, {one.high:.2f}], {one.by_mean} by the others' mean"
            sizes = f"error {one.error:.1f}, the others' mean {one.error_of_mean:.1f}, p {one.p:.4f}"
            print(f"  {technique}: {one.fork:+.1f}, whole runs {one.whole:+.1f}; {signs} {by_mean}; {sizes}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
