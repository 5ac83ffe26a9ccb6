"""How well effects at a quarter of the horizon predict those at its end, over all packed studies: the page's tables.

Run in the repository: `python experiments/short_horizon/predict.py`.

An effect is a contrast of a study's report, as the mean of its differences over base policies. The early one is on
training accuracy at a quarter of the steps, the late one on training accuracy at the last step or on the study's
held-out accuracy. A prediction is the early effect times one factor, fitted on the effects of the other folders. Left
out: contrasts of the same arms under a second name, placebos (another noise stream), and what is exactly zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ablations.compare.contrasts import compare, contrasts
from ablations.read.curves import TRAINING_ACCURACY
from ablations.read.outcomes import bases, primary_metric, scores
from ablations.read.runs import Runs, load

EXPERIMENTS = Path(__file__).parent.parent
ENDS = ("training", "held-out")


@dataclass(frozen=True)
class Effect:
    """One contrast of one study, in points."""

    folder: str
    """Studies of one folder are left out together."""
    study: str
    label: str
    interaction: bool
    early: float
    ends: dict[str, float]
    clarity: tuple[float, float]
    """Mean over standard deviation of the bases on training accuracy, early and at the end."""


def effects(folder: Path) -> list[Effect]:
    """The contrasts of the packed study at `folder`."""
    runs = load(folder).usable
    horizon = max(int(run.metrics.index.max()) for run in runs)
    first, base_of = next(iter(runs)), bases(runs)
    candidates = [(first.config.get(part) or {}).get("reference") for part in ("study", "regime")]
    reference = next((name for name in (*candidates, "dapo", "naive_grpo") if name in runs.arms), None)
    early, late = at_step(runs, max(1, horizon // 4)), at_step(runs, horizon)
    heldout = scores(runs, primary_metric(runs))
    found, seen = list[Effect](), set[frozenset[tuple[str, float]]]()
    for contrast in contrasts(runs.arms, reference):
        weights = frozenset((arm, abs(weight)) for arm, weight in contrast.weights.items())
        repeated = weights in seen and contrast.pair is not None
        if repeated or "noise_stream" in contrast.label:
            continue
        seen.add(weights)
        here, end, last = (compare(contrast, table, base_of) for table in (early, late, heldout))
        if not end.seeds or not last.seeds or not any(here.differences):
            continue
        means = {"training": 100 * end.estimate.mean, "held-out": 100 * last.estimate.mean}
        clear = (clarity(here.differences), clarity(end.differences))
        interaction = contrast.family == "interactions"
        name = folder.parent.name if folder.parent.parent == EXPERIMENTS else folder.parent.parent.name
        label = f"{contrast.family}: {contrast.label}"
        found.append(Effect(name, first.study, label, interaction, 100 * here.estimate.mean, means, clear))
    return found


def at_step(runs: Runs, step: int) -> dict[str, dict[int, float]]:
    """Training accuracy at one step: arm -> seed -> value."""
    table: dict[str, dict[int, float]] = {arm: {} for arm in runs.arms}
    for run in runs:
        series = run.series(TRAINING_ACCURACY)
        if step in series.index:
            table[run.arm][run.seed] = float(series[step])
    return table


def clarity(differences: Sequence[float]) -> float:
    """Mean over standard deviation of the pairs."""
    return float(np.mean(differences) / np.std(differences, ddof=1)) if len(differences) > 1 else float("nan")


def predicted(found: Sequence[Effect], end: str) -> np.ndarray:
    """The end's effects by the early ones times the factor of least squares over the other folders."""
    early, late = (np.array(values) for values in ([e.early for e in found], [e.ends[end] for e in found]))
    folders = np.array([e.folder for e in found])
    factors = {f: (early[folders != f] @ late[folders != f]) / (early[folders != f] ** 2).sum() for f in set(folders)}
    return early * np.array([factors[f] for f in folders])


def means_of_others(found: Sequence[Effect], end: str) -> np.ndarray:
    """The mean effect of the other folders."""
    late, folders = np.array([e.ends[end] for e in found]), np.array([e.folder for e in found])
    return np.array([late[folders != f].mean() for f in folders])


def summary(found: Sequence[Effect], end: str) -> dict[str, float]:
    """Correlation and agreement of signs; of several folders also the errors of predictions, in points."""
    early, late = (np.array(values) for values in ([e.early for e in found], [e.ends[end] for e in found]))
    positive = float((late > 0).mean())
    row = {
        "effects": len(found),
        "correlation": float(np.corrcoef(early, late)[0, 1]),
        "same sign": float((np.sign(early) == np.sign(late)).mean()),
        "commonest sign": max(positive, 1 - positive),
    }
    if len({e.folder for e in found}) > 1:
        row["error, scaled"] = rms(predicted(found, end) - late)
        row["error, mean of others"] = rms(means_of_others(found, end) - late)
        row["error, zero"] = rms(late)
    return row


def rms(errors: np.ndarray) -> float:
    return float(np.sqrt((errors**2).mean()))


def main() -> None:
    folders = sorted(path.parent for path in EXPERIMENTS.glob("**/cells.parquet"))
    every = [effect for folder in folders for effect in effects(folder)]
    plain = [e for e in every if not e.interaction]
    groups = {
        "all": every,
        "without interactions": plain,
        "of these, early above 1 point": [e for e in plain if abs(e.early) > 1],
        "of these, early at most 1 point": [e for e in plain if abs(e.early) <= 1],
        "main effects of the half factorial": [e for e in every if e.label.startswith("main effects")],
        "interactions of the half factorial": [e for e in every if e.interaction],
    }
    for end in ENDS:
        print(f"\nearly training accuracy against {end} accuracy at the end")
        for name, group in groups.items():
            print(f"  {name}: " + ", ".join(f"{key} {value:.3g}" for key, value in summary(group, end).items()))
    print("\n| folder | study | contrast | early | end, training | end, held-out | clarity early | end |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for e in every:
        clear = " | ".join(f"{c:.1f}" for c in e.clarity)
        ends = " | ".join(f"{e.ends[end]:+.1f}" for end in ENDS)
        print(f"| {e.folder} | {e.study} | {e.label} | {e.early:+.1f} | {ends} | {clear} |")


if __name__ == "__main__":
    main()
