"""The cube in `joint` predicts the half fraction on another task: signs of effects, and the arms of each base policy.

python experiments/factorial_half_parity/transfer.py [FOLDER ...]
"""

import sys
from itertools import combinations
from pathlib import Path

import numpy as np

from ablations.designs import read_arm
from ablations.read.outcomes import primary_metric, scores
from ablations.read.runs import load
from ablations.techniques import REGISTER

HERE = Path(__file__).parent
CUBE = HERE.parent / "factorial_joint" / "runs"
ORDERS = {"none": 0, "main effects": 1, "and interactions of two": 2, "and of three": 3, "the arms' means": 5}


def table(folder: Path) -> tuple[list[str], np.ndarray]:
    """Arms, and their outcomes in points: [arms, seeds]."""
    runs = load(folder).usable
    found = scores(runs, primary_metric(runs, None))
    return list(found), 100 * np.array([[by_seed[seed] for seed in runs.seeds] for by_seed in found.values()])


def terms(arms: list[str], order: int) -> np.ndarray:
    """[arms, terms] of -1 and 1: the constant and every product of up to `order` switches."""
    signs = np.array([[1.0 if switch in read_arm(arm).on else -1.0 for switch in REGISTER] for arm in arms])
    chosen = [c for size in range(order + 1) for c in combinations(range(signs.shape[1]), size)]
    return np.stack([signs[:, list(c)].prod(axis=1) for c in chosen], axis=1)


def main(folders: list[Path]) -> None:
    cube, there = table(CUBE)
    for folder in folders:
        arms, here = table(folder)
        centred = here - here.mean(axis=0)
        print(f"{folder}: {here.shape[0]} arms x {here.shape[1]} base policies")
        for name, order in ORDERS.items():
            fitted = np.linalg.lstsq(terms(cube, order), there.mean(axis=1))[0]
            predicted = terms(arms, order) @ fitted
            predicted -= predicted.mean()
            errors = np.sqrt(((centred - predicted[:, None]) ** 2).mean(axis=0))
            gain = np.sqrt((centred**2).mean(axis=0)) - errors
            spread = gain.std(ddof=1) / len(gain) ** 0.5
            r = np.corrcoef(predicted, centred.mean(axis=1))[0, 1] if order else float("nan")
            than_none = f"{gain.mean():+.2f} (s.e. {spread:.2f}) less than none"
            print(f"  {name}: error {errors.mean():.2f}, {than_none}, r {r:+.2f}")
        effects = [np.linalg.lstsq(terms(a, 2), y.mean(axis=1))[0][1:] * 2 for a, y in ((cube, there), (arms, here))]
        for name, part in (("main effects", slice(0, 5)), ("interactions", slice(5, 15))):
            a, b = (e[part] for e in effects)
            kept = (np.sign(a) == np.sign(b)).sum()
            print(f"  {name}: {kept} of {len(a)} keep their sign, r {np.corrcoef(a, b)[0, 1]:+.2f}")


if __name__ == "__main__":
    main(list(map(Path, sys.argv[1:])) or [HERE / "runs"])
