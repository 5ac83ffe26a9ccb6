"""How far a technique's effect differs between tasks: Welch intervals of the differences on the page.

Run in the repository: `python experiments/across_tasks/differences.py`.
"""

from itertools import combinations
from pathlib import Path

import numpy as np
from scipy import stats

from ablations.compare.contrasts import compare, contrasts
from ablations.read.outcomes import bases, primary_metric, scores
from ablations.read.runs import load

HERE = Path(__file__).parent
TASKS = {
    "programs": HERE / "programs" / "runs",
    "parity": HERE / "parity" / "runs",
    "sums": HERE.parent / "four_techniques_joint" / "runs",
}
TECHNIQUES = ("clip_higher", "dynamic_sampling")
CONFIDENCE = 1 - 0.05 / 3  # three differences a technique


def effect(folder: Path, technique: str) -> tuple[float, float, int]:
    """Mean of DAPO minus DAPO without the technique in points, its standard error within bases, degrees of freedom."""
    runs = load(folder)
    found = contrasts(runs.usable.arms, "dapo")
    contrast = next(one for one in found if one.pair == ("dapo", f"dapo-{technique}"))
    comparison = compare(contrast, scores(runs, primary_metric(runs, None)), bases(runs))
    values, of = 100 * np.array(comparison.differences), np.array(comparison.bases)
    within = values - [values[of == base].mean() for base in of]
    freedom = len(values) - len(set(of.tolist()))
    return float(values.mean()), float(np.sqrt((within**2).sum() / freedom / len(values))), freedom


for technique in TECHNIQUES:
    effects = {task: effect(folder, technique) for task, folder in TASKS.items()}
    for one, other in combinations(TASKS, 2):
        (mean, error, freedom), (mean_other, error_other, freedom_other) = effects[one], effects[other]
        both = np.hypot(error, error_other)
        welch = both**4 / (error**4 / freedom + error_other**4 / freedom_other)
        half = stats.t.ppf((1 + CONFIDENCE) / 2, welch) * both
        difference = mean - mean_other
        print(
            f"{technique}: {one} minus {other} {difference:+.1f} [{difference - half:+.1f}, {difference + half:+.1f}]"
        )
