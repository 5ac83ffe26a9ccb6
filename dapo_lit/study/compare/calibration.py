"""Calibration: is a regime sensitive to a technique? An extreme setting must change a metric, a placebo must not.

A technique is admitted if the metric that was named beforehand changes by at least two standard deviations of a paired
difference, in the direction that was named, with an interval that excludes 0, and the placebo does not do as much.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dapo_lit.study.compare.contrasts import compare_on, difference
from dapo_lit.study.compare.statistics import pairs_needed, seeds_needed, smallest_effect
from dapo_lit.study.read.outcomes import bases
from dapo_lit.study.read.runs import Runs, StudyError

CALIBRATE = "calibrate"
"""The study whose arms a regime names."""
FILE = "calibration.json"
LEAST_D = 2.0
"""The smallest standardised effect of an extreme setting that admits a technique."""
TWO_POINTS = 0.02
PLACEBO = "@rollout.noise_stream=1"
"""Suffix of the placebo's name, behind that of the arm that it repeats."""


def calibration_arms(reference: str, doses: Iterable[str]) -> list[str]:
    """The arms of a calibration: the reference, the placebo and every setting of a control."""
    return list(dict.fromkeys([reference, reference + PLACEBO, *doses]))


@dataclass(frozen=True)
class Difference:
    """A paired difference between two arms."""

    arms: tuple[str, str]
    """Treated and control."""
    outcome: str
    n: int
    mean: float
    low: float | None
    high: float | None
    d: float | None
    """The mean over the standard deviation of the differences between base policies."""

    sd: float | None

    def stands_out(self, least: float) -> bool:
        """True for an interval on one side of 0, and a mean of at least so many standard deviations."""
        one_side = self.low is not None and self.high is not None and self.low * self.high > 0
        return one_side and (not least or (self.d is not None and abs(self.d) >= least))


@dataclass(frozen=True)
class Verdict:
    """The result of a technique's positive control."""

    technique: str
    admitted: bool
    reason: str
    doses: tuple[Difference, ...]
    """Each setting minus the first; the last is the extreme one."""
    placebo: Difference | None
    accuracy: Difference | None = None
    """The extreme setting minus the first, on the primary metric, where the regime's studies claim it."""
    accuracy_reason: str | None = None
    """The reason why the regime is not sensitive to the technique on that metric; empty: it is; None: not asked."""


@dataclass(frozen=True)
class Calibration:
    """A regime's sensitivity to each of its techniques."""

    regime: str
    reference: str
    seeds: tuple[int, ...]
    bases: tuple[str, ...]
    steps: int
    techniques: tuple[Verdict, ...]
    metric: str
    """The primary metric, for which the next three are given."""
    sd: float | None
    """Standard deviation of a paired difference between base policies, pooled over the placebo and the settings."""
    smallest: Mapping[int, float]
    """Pairs -> the smallest effect that they find with a power of 80 %."""
    seeds_for_two_points: int | None


def calibrate(runs: Runs, regime: Mapping[str, Any], metric: str) -> Calibration:
    """Reads the runs of a calibration."""
    usable, reference = runs.usable, str(regime["reference"])
    for arm in [reference, reference + PLACEBO, *(a for c in regime["techniques"].values() for a in c["doses"])]:
        if not usable.of(arm):
            raise StudyError(f"the calibration of {regime['name']} has no finished run of {arm}")
    verdicts = [_verdict(usable, reference, name, control) for name, control in regime["techniques"].items()]
    nothing = _difference(usable, reference + PLACEBO, reference, metric)
    if regime.get("accuracy"):
        verdicts = [_on_accuracy(usable, verdict, nothing, metric) for verdict in verdicts]
    pairs = sorted({(reference + PLACEBO, reference), *(e.arms for v in verdicts for e in v.doses)})
    spreads = [e.sd for pair in pairs if (e := _difference(usable, *pair, metric)) and e.sd]
    sd = (sum(s**2 for s in spreads) / len(spreads)) ** 0.5 if spreads else None
    needed = seeds_needed(TWO_POINTS / sd) if sd else None
    return Calibration(
        regime=str(regime["name"]),
        reference=reference,
        seeds=usable.seeds,
        bases=tuple(sorted(set(bases(usable).values()))),
        steps=max(int(run.metrics.index.max()) for run in usable),
        techniques=tuple(verdicts),
        metric=metric,
        sd=sd,
        smallest={n: sd * (smallest_effect(n) or 0) for n in (6, 12, 20)} if sd else {},
        seeds_for_two_points=max(needed, pairs_needed(1)) if needed else None,
    )


def _verdict(runs: Runs, reference: str, technique: str, control: Mapping[str, Any]) -> Verdict:
    key, steps = str(control["outcome"]), control.get("steps")
    first, *others = map(str, control["doses"])
    doses = tuple(e for dose in others if (e := _difference(runs, dose, first, key, steps)))
    placebo = _difference(runs, reference + PLACEBO, reference, key, steps)
    reason = _against(doses[-1] if doses else None, placebo, key, LEAST_D, str(control["direction"]))
    good = f"its extreme setting changes {key} and the placebo does not"
    return Verdict(technique, not reason, reason or good, doses, placebo)


def _on_accuracy(runs: Runs, verdict: Verdict, placebo: Difference | None, metric: str) -> Verdict:
    """The same on the metric that studies claim: the control's interval excludes 0, and the placebo's does not."""
    found = _difference(runs, *verdict.doses[-1].arms, metric) if verdict.doses else None
    return replace(verdict, accuracy=found, accuracy_reason=_against(found, placebo, metric))


def _against(
    extreme: Difference | None, placebo: Difference | None, key: str, least: float = 0.0, direction: str = "either"
) -> str:
    """The reason not to admit a technique; empty where it is admitted."""
    if extreme is None or placebo is None:
        return f"no pair of runs logged {key}"
    if not extreme.stands_out(least):
        return f"its extreme setting does not change {key}" + (f" by {least:g} standard deviations" if least else "")
    if direction != "either" and (extreme.mean > 0) != (direction == "up"):
        return f"its extreme setting changes {key}, but not {direction}"
    return f"the placebo changes {key} as well" if placebo.stands_out(least) else ""


def _difference(
    runs: Runs, treated: str, control: str, key: str, steps: tuple[int, int] | None = None
) -> Difference | None:
    e = compare_on(runs, difference("", "", None, treated, control), key, steps).estimate
    d = e.mean / e.sd if e and e.sd else None
    return Difference((treated, control), key, e.n, e.mean, e.low, e.high, d, e.sd) if e else None


@dataclass(frozen=True)
class Admitted:
    """A stored calibration: the techniques that a regime is sensitive to."""

    regime: str
    pairs: int
    verdicts: Mapping[str, str]
    """Technique -> why the regime is not sensitive to it; empty: it is."""
    on_accuracy: Mapping[str, str] = field(default_factory=dict)
    """The same for held-out accuracy, where the regime's studies claim it."""


def read_calibration(runs: Runs, study: Path) -> Admitted | None:
    """The calibration of the regime that these runs name; None without a regime, or where none was run.

    It is looked for as calibrate_<regime>/ next to the study (or one folder up, where cells are packed in `runs/`), and
    below experiments/.
    """
    regime = next((run.config["regime"] for run in runs if run.config.get("regime")), None)
    if regime is None:
        return None
    name = f"calibrate_{regime['name']}"
    places = [study.resolve().parent, study.resolve().parent.parent, Path("experiments")]
    files = [place / name / inner / FILE for place in places for inner in ("", "runs")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return None
    try:
        tree = json.loads(file.read_text())
        verdicts = {row["technique"]: "" if row["admitted"] else str(row["reason"]) for row in tree["techniques"]}
        accuracy = {
            row["technique"]: row["accuracy_reason"]
            for row in tree["techniques"]
            if row.get("accuracy_reason") is not None
        }
        return Admitted(str(tree["regime"]), len(tree["seeds"]), verdicts, accuracy)
    except (ValueError, KeyError, TypeError) as error:
        raise StudyError(
            f"{file}: cannot be read ({type(error).__name__}: {error}); +study=calibrate writes it"
        ) from None
