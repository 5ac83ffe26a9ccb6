"""Numbers of results as text: intervals, budgets, missing cells, the technique card."""

from collections.abc import Collection, Mapping

from dapo_lit.study.compare.contrasts import Comparison
from dapo_lit.study.compare.statistics import Estimate
from dapo_lit.study.read.outcomes import amount
from dapo_lit.study.read.registration import Plan
from dapo_lit.study.read.runs import Runs
from dapo_lit.techniques import REGISTER


def technique_card(results: list[Comparison], key: str) -> tuple[list[str], list[list[str]]]:
    """Each technique's effect in every view: the columns and rows of a table."""
    views = [
        family
        for family in dict.fromkeys(r.contrast.family for r in results)
        if any(r.contrast.technique for r in results if r.contrast.family == family)
    ]
    rows = []
    for technique in REGISTER:
        cells = {r.contrast.family: short_estimate(r, key) for r in results if r.contrast.technique == technique}
        if cells:
            rows.append([technique, *(cells.get(view, "–") for view in views)])
    return ["technique", *views], rows


def short_estimate(result: Comparison, key: str) -> str:
    """`+3.1 [0.2, 6.0] n=5`."""
    estimate = result.estimate
    if estimate is None:
        return "no common seed"
    text = amount(key, estimate.mean, signed=True)
    if estimate.low is not None:
        text += f" [{amount(key, estimate.low, signed=True)}, {amount(key, estimate.high, signed=True)}]"
    return f"{text} n={estimate.n}"


def budget_text(runs: Runs, plan: Plan | None) -> str:
    """The budget of the comparison: what was registered, and where the runs ended."""
    ends = sorted({int(run.metrics.index.max()) for run in runs.usable})
    reached = f"{ends[0]} steps" if len(ends) == 1 else f"{ends[0]} to {ends[-1]} steps"
    limits: Mapping[str, float | None] = (plan.budget or {}) if plan else {}
    named = ", ".join(f"{key} {value:g}" for key, value in limits.items() if value is not None)
    return f"at {reached}" + (f" (registered budget: {named})" if named else "")


def missing_text(missing: Collection[tuple[str, int]]) -> str:
    """Which cells have no usable run, arm by arm; empty if none lacks.

    >>> missing_text([("dapo", 3), ("dapo", 4)])
    ' 2 cells that were asked for have no usable run: dapo at seeds 3, 4.'
    """
    if not missing:
        return ""
    arms = {arm: [str(seed) for other, seed in missing if other == arm] for arm, _ in missing}
    named = "; ".join(f"{arm} at seeds {', '.join(seeds)}" for arm, seeds in arms.items())
    return f" {len(missing)} cells that were asked for have no usable run: {named}."


def signed_interval(key: str, estimate: Estimate) -> str:
    """`+6.7 [+2.2, +11.3]`: a difference, without its unit."""
    text = amount(key, estimate.mean, signed=True)
    if estimate.low is not None:
        text += f" [{amount(key, estimate.low, signed=True)}, {amount(key, estimate.high, signed=True)}]"
    return text


def interval(key: str, estimate: Estimate) -> str:
    """`61.2 [58.0, 64.4] n=5`."""
    text = amount(key, estimate.mean)
    if estimate.low is not None:
        text += f" [{amount(key, estimate.low)}, {amount(key, estimate.high)}]"
    return f"{text} n={estimate.n}"
