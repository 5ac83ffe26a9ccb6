"""Calibration: is a regime sensitive to a technique? An extreme setting must change a metric, a placebo must not.

A technique is admitted if the metric that was named beforehand changes by at least two standard deviations of a paired
difference, in the direction that was named, with an interval that excludes 0, and the placebo does not do as much.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ablations.compare.contrasts import compare_on, difference
from ablations.compare.statistics import pairs_needed, seeds_needed, smallest_effect
from ablations.read.outcomes import bases
from ablations.read.runs import Runs, StudyError

Difference = dict[str, Any]
"""A paired difference of two arms, as calibration.json holds it."""
CALIBRATE = "calibrate"
"""The study whose arms a regime names."""
LEAST_D = 2.0
"""The smallest standardised effect of an extreme setting that admits a technique."""
TWO_POINTS = 0.02
PLACEBO = "@rollout.noise_stream=1"
"""Suffix of the placebo's name, behind that of the arm that it repeats."""


def calibration_arms(reference: str, doses: Iterable[str]) -> list[str]:
    """The arms of a calibration: the reference, the placebo and every setting of a control."""
    return list(dict.fromkeys([reference, reference + PLACEBO, *doses]))


def calibrate(runs: Runs, regime: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """A regime's sensitivity to each of its techniques: the content of calibration.json.

    `doses` are each setting minus the first, the last of them the extreme one. `sd` is the standard deviation of a
    paired difference between base policies on the primary metric, pooled over the placebo and the settings.
    """
    usable, reference = runs.usable, str(regime["reference"])
    placebo, controls = (reference + PLACEBO, reference), regime["techniques"]
    for arm in [*reversed(placebo), *(a for c in controls.values() for a in c["doses"])]:
        if not usable.of(arm):
            raise StudyError(f"the calibration of {regime['name']} has no finished run of {arm}")
    rows = [_technique(usable, name, control, placebo) for name, control in controls.items()]
    if regime.get("accuracy"):
        nothing = _difference(usable, placebo, metric)
        for row in rows:
            found = _difference(usable, row["doses"][-1]["arms"], metric) if row["doses"] else None
            row |= {"accuracy": found, "accuracy_reason": _against(found, nothing, metric)}
    pairs = sorted({placebo, *(e["arms"] for row in rows for e in row["doses"])})
    spreads = [e["sd"] for pair in pairs if (e := _difference(usable, pair, metric)) and e["sd"]]
    sd = (sum(s**2 for s in spreads) / len(spreads)) ** 0.5 if spreads else None
    needed = seeds_needed(TWO_POINTS / sd) if sd else None
    return {
        "regime": str(regime["name"]),
        "reference": reference,
        "seeds": usable.seeds,
        "bases": sorted(set(bases(usable).values())),
        "steps": max(int(run.metrics.index.max()) for run in usable),
        "techniques": rows,
        "metric": metric,
        "sd": sd,
        "smallest": {n: sd * (smallest_effect(n) or 0) for n in (6, 12, 20)} if sd else {},
        "seeds_for_two_points": max(needed, pairs_needed(1)) if needed else None,
    }


def _technique(runs: Runs, technique: str, control: Mapping[str, Any], placebo: tuple[str, str]) -> dict[str, Any]:
    """The result of a technique's positive control."""
    key, steps = str(control["outcome"]), control.get("steps")
    first, *others = map(str, control["doses"])
    doses = [e for dose in others if (e := _difference(runs, (dose, first), key, steps))]
    nothing = _difference(runs, placebo, key, steps)
    reason = _against(doses[-1] if doses else None, nothing, key, LEAST_D, str(control["direction"]))
    good = f"its extreme setting changes {key} and the placebo does not"
    return {
        "technique": technique, "admitted": not reason, "reason": reason or good, "doses": doses, "placebo": nothing,
        "accuracy": None, "accuracy_reason": None,
    }  # fmt: skip


def _against(
    extreme: Difference | None, placebo: Difference | None, key: str, least: float = 0.0, direction: str = "either"
) -> str:
    """The reason not to admit a technique; empty where it is admitted."""
    if extreme is None or placebo is None:
        return f"no pair of runs logged {key}"
    if not _stands_out(extreme, least):
        return f"its extreme setting does not change {key}" + (f" by {least:g} standard deviations" if least else "")
    if direction != "either" and (extreme["mean"] > 0) != (direction == "up"):
        return f"its extreme setting changes {key}, but not {direction}"
    return f"the placebo changes {key} as well" if _stands_out(placebo, least) else ""


def _stands_out(row: Difference, least: float) -> bool:
    """True for an interval on one side of 0, and a mean of at least so many standard deviations."""
    one_side = row["low"] is not None and row["low"] * row["high"] > 0
    return one_side and (not least or (row["d"] is not None and abs(row["d"]) >= least))


def _difference(runs: Runs, arms: tuple[str, str], key: str, steps: tuple[int, int] | None = None) -> Difference | None:
    """Treated minus control, with d, the mean over the standard deviation of the bases; None without a pair."""
    e = compare_on(runs, difference("", "", None, *arms), key, steps).estimate
    numbers = {"mean": e.mean, "low": e.low, "high": e.high, "d": e.mean / e.sd if e.sd else None, "sd": e.sd}
    return {"arms": arms, "outcome": key, "n": e.n, **numbers} if e.n else None
