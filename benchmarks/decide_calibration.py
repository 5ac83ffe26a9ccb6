"""The noise that `decide` expects before the first pair, and whether the regret that it says is the regret there is.

    python benchmarks/decide_calibration.py > benchmarks/results/decide_calibration.json

`changes` are the standard deviations of a pair in the committed calibrations: placebo and settings against the
reference of each regime, and the arms of `length_penalty`, on held-out accuracy in shares. Changes that moved no run
are left out. `prior` is the scaled inverse chi-squared distribution of the variance of a pair whose logarithm has the
mean and the variance of theirs, without what twelve pairs add to it; each task counts the same. It is `SHARES` in
ablations/compare/deciding.py, rounded. A fit by likelihood was tried first: it expects heavier tails, and the
regret said at two pairs is 12 % too large.

`left_out` tests it: each task's changes are decided with the prior of the other tasks. A change has an effect drawn
from the prior of effects (`drawn`) or the one that was measured (`measured`), and so many normal pairs around it; the
means are over all tasks. `said` is the regret of stopping, `found` the mean loss. For drawn effects that is
sd sqrt(2 / pi) (1 - (1 + 1 / n)^-1/2) / 2, as what looks better is the sign of the mean. `gain` is what four further
pairs remove of it. `said_without` is said with nothing taken to be known of the noise.
"""

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
from scipy import optimize, special

from ablations.compare.calibration import PLACEBO
from ablations.compare.deciding import SHIPPED, Prior, belief, paired

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
PAIRS, FURTHER, DRAWS = (2, 3, 4, 6, 8), 4, 2000


@dataclass(frozen=True)
class Measured:
    """A change on a task: its effect, and the standard deviation of a pair."""

    task: str
    change: str
    pairs: int
    mean: float
    sd: float


def measured() -> list[Measured]:
    found = []
    # No study runs in `browser`: its policy has 84,000 parameters, for a page.
    calibrations = [study for study in sorted(EXPERIMENTS.glob("calibrate_*")) if study.name != "calibrate_browser"]
    for study in (*calibrations, EXPERIMENTS / "length_penalty"):
        table = pd.read_parquet(study / "runs" / "metrics.parquet")
        (key,) = (name for name in table if name.startswith("eval/") and "/avg@" in name)
        trained = table[table["step"] > 0].dropna(subset=[key]).sort_values("step")
        last = trained.groupby(["arm", "seed"])[key].last().unstack()
        (placebo,) = (arm for arm in last.index if arm.endswith(PLACEBO))
        for arm in last.index:
            differences = (last.loc[arm] - last.loc[placebo.removesuffix(PLACEBO)]).dropna().to_numpy(float)
            if differences.std():
                task = key.split("/")[1]
                sd = float(differences.std(ddof=1))
                found.append(Measured(task, arm, len(differences), float(differences.mean()), sd))
    return found


def fitted(changes: Sequence[Measured]) -> Prior:
    """The prior whose log variance has the moments of these; log of chi-squared has digamma and trigamma."""
    of_task = {task: [each.task for each in changes].count(task) for task in {each.task for each in changes}}
    weight = np.array([1 / of_task[each.task] for each in changes]) / len(of_task)
    half = np.array([(each.pairs - 1) / 2 for each in changes])
    logs = np.log([each.sd**2 for each in changes]) - special.digamma(half) + np.log(half)
    mean = float(weight @ logs)
    spread = float(weight @ (logs - mean) ** 2) / (1 - float(weight @ weight))
    beyond = spread - float(weight @ special.polygamma(1, half))
    freedom = 2 * optimize.brentq(lambda x: special.polygamma(1, x) - beyond, 0.1, 1000)
    sd = math.exp((mean - math.log(freedom / 2) + float(special.digamma(freedom / 2))) / 2)
    return Prior(SHIPPED.pairs, sd, freedom)


def lost(pairs: float) -> float:
    """Mean loss of the sign of the mean of so many pairs, in standard deviations of one, of effects of one."""
    return math.sqrt(2 / math.pi) * (1 - (1 + 1 / pairs) ** -0.5) / 2


def decided(change: Measured, prior: Prior, pairs: int, drawn: bool) -> dict[str, float]:
    """Means over draws, in points."""
    # A stream of its own for each change, so that what is left of chance averages out over them.
    rng = np.random.default_rng([57, pairs, zlib.crc32(f"{change.task} {change.change}".encode())])
    effects = rng.normal(0, change.sd, DRAWS) if drawn else np.full(DRAWS, change.mean)
    values = effects[:, None] + rng.normal(0, change.sd, (DRAWS, pairs))
    now = [belief(paired(row), prior) for row in values.tolist()]
    wrong = np.sign(values.mean(axis=1)) != np.sign(effects)
    found = change.sd * lost(pairs) if drawn else float(np.mean(np.abs(effects) * wrong))
    removed = change.sd * (lost(pairs) - lost(pairs + FURTHER))
    means = {"said": fmean(each.regret() for each in now), "found": found}
    means |= {"gain_said": fmean(each.gain(FURTHER) for each in now), "gain_found": removed} if drawn else {}
    return {key: 100 * number for key, number in means.items()}


def over_tasks(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Means of each task's changes, then of tasks."""
    keys = next(iter(rows.values()))[0]
    return {key: round(fmean(fmean(row[key] for row in of) for of in rows.values()), 4) for key in keys}


def left_out(changes: Sequence[Measured], pairs: int) -> dict[str, object]:
    tasks = list(dict.fromkeys(each.task for each in changes))
    rows: dict[str, dict[str, list[dict[str, float]]]] = {"drawn": {}, "measured": {}, "without": {}}
    for task in tasks:
        prior = fitted([each for each in changes if each.task != task])
        own = [each for each in changes if each.task == task]
        rows["drawn"][task] = [decided(each, prior, pairs, True) for each in own]
        rows["measured"][task] = [decided(each, prior, pairs, False) for each in own]
        rows["without"][task] = [decided(each, SHIPPED, pairs, True) for each in own]
    ratios = [fmean(r["said"] for r in of) / fmean(r["found"] for r in of) for of in rows["drawn"].values()]
    return {
        "drawn": over_tasks(rows["drawn"]),
        "measured": over_tasks(rows["measured"]),
        "said_without": over_tasks(rows["without"])["said"],
        "ratio_of_a_task": [round(min(ratios), 2), round(max(ratios), 2)],
    }


if __name__ == "__main__":
    changes = measured()
    prior = fitted(changes)
    rows = [
        {"task": c.task, "change": c.change, "pairs": c.pairs, "mean": round(c.mean, 5), "sd": round(c.sd, 5)}
        for c in changes
    ]
    found = {
        "prior": {"sd": round(prior.sd or 0.0, 5), "weight": round(prior.weight, 3)},
        "left_out": {str(pairs): left_out(changes, pairs) for pairs in PAIRS},
        "changes": rows,
    }
    print(json.dumps(found, indent=1))
