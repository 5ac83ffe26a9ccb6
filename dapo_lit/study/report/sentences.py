"""Results in words that claim no more than the exact test allows."""

from collections.abc import Collection, Mapping

from dapo_lit.study.compare.contrasts import Comparison
from dapo_lit.study.compare.statistics import Estimate
from dapo_lit.study.read.metric_words import in_words
from dapo_lit.study.read.outcomes import amount, unit
from dapo_lit.study.read.registration import Plan
from dapo_lit.study.read.runs import Runs
from dapo_lit.techniques import REGISTER


def sentence(result: Comparison, key: str, budget: str, size: int, idle: str | None, alpha: float = 0.05) -> str:
    """One comparison as a sentence with effect, interval, n and budget.

    "Improves", "worsens", "raises" and "lowers" need a Holm-adjusted exact p of at most alpha; all else is an observed
    difference. One seed has no interval.

    Args:
        size: comparisons in the family.
        idle: the measurement that shows that the technique had next to nothing to act on; None: it had.
    """
    contrast = result.contrast
    subject = f"**{contrast.label}** ({contrast.family})"
    if result.estimate is None:
        return f"{subject}: cannot be compared, no seed has all of its arms ({', '.join(contrast.weights)})."
    mean = result.estimate.mean
    named = key if key.startswith("eval/") else in_words(key)
    is_accuracy = "/avg@" in key or key.endswith("accuracy")
    words = ("improves" if mean > 0 else "worsens") if is_accuracy else ("raises" if mean > 0 else "lowers")
    value = f"{amount(key, mean, signed=True)} {unit(key)}".strip()
    if result.decided(alpha):
        text = f"{subject} {words} {named} by {amount(key, abs(mean))} {unit(key)}".rstrip()
    else:
        text = f"{subject}: observed difference in {named} {value}"
    if result.estimate.low is None:
        text += " (one seed: no interval)"
    else:
        low, high = (amount(key, end, signed=True) for end in (result.estimate.low, result.estimate.high))
        text += f" [{low}, {high}] (95 % t-interval)"
    text += f", {units(result)}"
    if result.p is not None and result.p_holm is not None:
        text += f", exact p {result.p:.3g} (Holm over {size}: {result.p_holm:.3g})"
    text += f", {budget}."
    if idle:
        text += f" Not exercised in this regime: {idle}."
    return text


def units(result: Comparison) -> str:
    """What n counts: base policies; where all seeds share one, its runs, and the finding speaks of this policy only."""
    bases, runs = len(result.by_base), len(result.seeds)
    if runs == 1:
        return "one seed"
    if not bases:
        return f"n = {runs} runs of one base policy, of which alone it speaks"
    return f"n = {bases} base policies" + (f", {runs} seeds" if runs > bases else "")


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
