"""How a claim is judged: one number a seed, positive where the claim is true, and a rule from numbers to a verdict.

A claim is decided by the exact sign-flip test at 5 %, so never with fewer than six seeds, and the sign of the mean says
whether it holds or fails. Upper bounds cannot make a claim hold. Where a seed has no number the claim is undecided,
since how a run ended decides whether it has one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dapo_lit.study.compare.contrasts import Contrast, by_seed, contrasts, difference
from dapo_lit.study.compare.decision import sign_flip_p
from dapo_lit.study.compare.equal_budget import first_reach
from dapo_lit.study.compare.statistics import t_interval
from dapo_lit.study.read.curves import curve
from dapo_lit.study.read.health import ends
from dapo_lit.study.read.outcomes import amount, outcome, scores, unit
from dapo_lit.study.read.runs import Run, Runs

Verdict = Literal["holds", "fails", "undecided", "not run"]
ALPHA = 0.05


@dataclass(frozen=True)
class Claim:
    """A claim and what these runs say about it."""

    number: str
    text: str
    metric: str
    arms: str
    verdict: Verdict
    evidence: str


def judge(values: Sequence[float]) -> Verdict:
    """The verdict on numbers that are positive where a claim is true, one a seed."""
    if not values:
        return "not run"
    if sign_flip_p(values) > ALPHA:
        return "undecided"
    return "holds" if sum(values) > 0 else "fails"


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim of several parts: it holds if all do."""
    worst_first: tuple[Verdict, ...] = ("not run", "fails", "undecided", "holds")
    return next((verdict for verdict in worst_first if verdict in verdicts), "not run")


@dataclass(frozen=True)
class Part:
    """One number a seed, with what it is."""

    label: str
    values: Sequence[float]
    key: str
    bounds: int = 0
    """How many of the values are only upper bounds, from runs that ended before they reached the target."""
    without: str = ""
    """Why some seeds have no number; empty: all have."""

    @property
    def verdict(self) -> Verdict:
        if self.without:
            return "undecided"
        verdict = judge(self.values)
        return "undecided" if self.bounds and verdict == "holds" else verdict

    def __str__(self) -> str:
        """Mean, interval, exact p, n, and the mean in standard deviations of the pairs (d)."""
        notes = [f"{self.bounds} of them never got there and count as a bound"] if self.bounds else []
        notes += [self.without] if self.without else []
        if not self.values:
            return "; ".join([f"{self.label}: no runs", *notes])
        estimate = t_interval(self.values)
        text = f"{self.label}: {amount(self.key, estimate.mean, signed=True)}"
        if estimate.low is not None:
            text += f" [{amount(self.key, estimate.low, signed=True)}, {amount(self.key, estimate.high, signed=True)}]"
            text = f"{text} {unit(self.key)}".rstrip() + f", exact p {sign_flip_p(self.values):.3g}"
        if estimate.sd:
            text += f", d = {estimate.mean / estimate.sd:+.1f}"
        return ", ".join([text, f"n = {len(self.values)}", *notes])


def conclude(*parts: Part) -> tuple[Verdict, str]:
    """Verdict and evidence of a claim of several parts: it holds if all do; a part without runs makes it `not run`."""
    return all_of([part.verdict for part in parts]), "; ".join(map(str, parts))


def contrast_for(technique: str, runs: Runs) -> Contrast | None:
    """The comparison that measures a technique: left out of DAPO, else its main effect, its rung, alone on GRPO."""
    found = [c for c in contrasts(runs.arms) if c.technique == technique and "Shapley" not in c.family]
    order = ("left out of DAPO", "main effects", "ladder", "alone on GRPO")
    return min(found, key=lambda c: order.index(c.family) if c.family in order else 9, default=None)


def effect(technique: str, runs: Runs, key: str, sign: float = 1.0) -> Part:
    """A technique's effect on a metric, a number a seed, times `sign`."""
    contrast = contrast_for(technique, runs)
    if contrast is None:
        return Part(f"{key} with and without {technique}", (), key)
    return Part(f"{key}, {contrast.family}", [sign * d for d in by_seed(contrast, scores(runs, key)).values()], key)


def change(runs: Sequence[Run], key: str, sign: float = 1.0, start_share: float = 1.0) -> list[float]:
    """Last tenth minus `start_share` of the first tenth of a metric, a number a run, times `sign`."""
    return [sign * (pair[1] - start_share * pair[0]) for run in runs if (pair := ends(run, key)) is not None]


def difference_of(runs: Runs, treated: str, control: str, key: str) -> list[float]:
    """Outcome of one arm minus another's, at each seed that both have."""
    return list(by_seed(difference("", "", None, treated, control), scores(runs, key)).values())


@dataclass(frozen=True)
class Shares:
    """Budget that treated runs need to reach their control's outcome, divided by the control's own; one a seed."""

    ratios: Sequence[float]
    never: int
    """How many runs did not reach it: their whole budget is taken, so the ratio is a lower bound."""
    undefined: int
    """Seeds left out because the control ended no better than it started, so that there is nothing to reach."""

    def saved(self, label: str, limit: float) -> Part:
        """`limit` minus each ratio."""
        seeds = f"{self.undefined} seed" + ("" if self.undefined == 1 else "s")
        without = f"{seeds} without a number: the control ended no better than it began" if self.undefined else ""
        return Part(label, [limit - ratio for ratio in self.ratios], "ratio", self.never, without)


def share_of_budget(runs: Runs, contrast: Contrast | None, key: str, axis: str) -> Shares:
    """How much of the control's budget `axis` the treated runs need to reach its outcome."""
    if contrast is None or contrast.pair is None:
        return Shares((), 0, 0)
    cells = {(run.arm, run.seed): run for run in runs}
    treated, control = contrast.pair
    ratios, never, undefined = [], 0, 0
    for seed in runs.seeds:
        a, b = cells.get((treated, seed)), cells.get((control, seed))
        reduced = outcome(b, key) if b else None
        if a is None or b is None or reduced is None:
            continue
        ours, theirs = curve(a, key, axis), curve(b, key, axis)
        own, needed = first_reach(theirs, reduced.last), first_reach(ours, reduced.last)
        if not own:
            undefined += 1
        elif len(ours):
            never += needed is None
            ratios.append((float(ours.index[-1]) if needed is None else needed) / own)
    return Shares(ratios, never, undefined)
