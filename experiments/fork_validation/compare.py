"""Do effects of forks have the signs and sizes of whole-run effects on the same base policies?

python experiments/fork_validation/compare.py runs/fork_validation_joint experiments/factorial_joint/runs

Points of training accuracy, each state by itself. Rules: docs/calibration.md, "Does a fork predict the whole run?".
"""

import sys
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from scipy import stats

from dapo_lit.study.designs import read_arm
from dapo_lit.study.read.runs import Runs, load
from dapo_lit.techniques import REGISTER

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


def main(forks: Path, whole: Path) -> None:
    wholes = effects(load(whole).usable)
    for step in sorted({int(folder.name.removeprefix("step_")) for folder in forks.glob("*/step_*")}):
        print(f"state before step {step}")
        rows: list[Row] = []
        nulls = []
        for folder in sorted(forks.glob(f"*/step_{step:06d}")):
            base = int(folder.parent.name.rpartition("_")[2])
            runs = load(folder).usable
            own = last_steps(runs, OWN)
            for technique, by_stream in effects(runs).items():
                rows.append(Row(technique, base, *interval(list(by_stream.values())), wholes[technique][base]))
            nulls.append(interval([own[stream] - own[stream + STREAMS] for stream in range(STREAMS)]))
        print(f"  placebo: {sum(abs(mean) > half for mean, half in nulls)} of {len(nulls)} decided, nominal 5 %")
        for technique in (*wholes, "all"):
            report(technique, [row for row in rows if technique in (row.technique, "all")])


def report(technique: str, rows: list[Row]) -> None:
    """One line: signs and sizes, of the forks and of the mean whole-run effect of the other base policies."""
    others = [fmean(o.whole for o in rows if o.technique == r.technique and o.base != r.base) for r in rows]
    decided = [(r, other) for r, other in zip(rows, others, strict=True) if abs(r.fork) > r.half_width]
    agree = sum(np.sign(r.fork) == np.sign(r.whole) for r, _ in decided)
    low, high = stats.binomtest(agree, len(decided)).proportion_ci() if decided else (float("nan"),) * 2
    by_mean = sum(np.sign(other) == np.sign(r.whole) for r, other in decided)
    errors = {base: [] for base in sorted({r.base for r in rows})}
    for r, other in zip(rows, others, strict=True):
        errors[r.base].append((abs(r.fork - r.whole), abs(other - r.whole)))
    of_fork, of_mean = (np.array([fmean(e[i] for e in of_base) for of_base in errors.values()]) for i in (0, 1))
    found = f"{fmean(r.fork for r in rows):+.1f}, whole runs {fmean(r.whole for r in rows):+.1f}"
    signs = f"{len(decided)} of {len(rows)} decided, {agree} with the whole run's sign [{low:.2f}, {high:.2f}]"
    sizes = f"error {of_fork.mean():.1f}, the others' mean {of_mean.mean():.1f}, p {sign_flip(of_mean - of_fork):.4f}"
    print(f"  {technique}: {found}; {signs}, {by_mean} by the others' mean; {sizes}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
