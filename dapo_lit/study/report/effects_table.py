"""The table of effects on a report's first page: registered with verdicts, exploratory without."""

import re
from collections.abc import Sequence

from dapo_lit.study.compare.effects import Effect
from dapo_lit.study.compare.statistics import smallest_effect
from dapo_lit.study.figures.style import contrast_name
from dapo_lit.study.read.outcomes import amount, unit
from dapo_lit.study.report.document import Part, Table
from dapo_lit.study.report.results import Results

ROWS = 8
"""Exploratory effects in other metrics that are shown."""
COLUMNS = ["comparison", "outcome", "n", "difference", "interval", "p", "adjusted p", "can see", "", "verdict"]


def effects_table(results: Results, others: Sequence[Effect]) -> list[Part]:
    """Every registered comparison, the others in the primary metric, the largest effects in any metric.

    Args:
        others: effects in all metrics, largest first.
    """
    shown = {(effect.contrast.label, effect.outcome) for effect in results.effects}
    rows = [*results.effects, *[e for e in others if (e.contrast.label, e.outcome) not in shown][:ROWS]]
    if not rows:
        return ["There is one arm only, or no two arms that differ in one technique: nothing is compared."]
    return [_summary(results), Table("effects", _caption(results, others), COLUMNS, list(map(_row, rows)))]


def _summary(results: Results) -> str:
    registered = [effect for effect in results.effects if effect.kind == "registered"]
    if not registered:
        return "**Decided:** nothing. No family of comparisons was registered, so every effect is exploratory."
    named = [f"{contrast_name(e.contrast)} ({e.verdict})" for e in registered if e.decided]
    text = f"**Decided:** {len(named)} of {len(registered)} registered comparisons"
    return f"{text}: {', '.join(named)}." if named else f"{text}."


def _row(effect: Effect) -> list[str]:
    key, estimate = effect.outcome, effect.estimate
    mean, low, high = (amount(key, end, signed=True) for end in (estimate.mean, estimate.low, estimate.high))
    least = smallest_effect(estimate.n)
    numbers = [f"{mean} {unit(key)}".strip(), "–" if estimate.low is None else f"[{low}, {high}]"]
    tests = ["–" if p is None else f"{p:.3g}" for p in (effect.p, effect.adjusted)]
    kind = f"{effect.kind}, {effect.contrast.family}" + (f", {effect.alpha:g}" if effect.alpha else "")
    words = re.sub(r" after the last step.*\)", ")", effect.words)
    seen = amount(key, least * estimate.sd) if least and estimate.sd else "–"
    return [contrast_name(effect.contrast), words, str(estimate.n), *numbers, *tests, seen, kind, effect.verdict]


def _caption(results: Results, others: Sequence[Effect]) -> str:
    units = "; ".join(sorted({result.units for result in results.comparisons if result.seeds}))
    looked = f"{len({effect.outcome for effect in others})} metrics"
    rule = results.plan.rule if results.plan and results.plan.rule else "two-sided sign-flip test, Holm in each family"
    primary = {effect.words for effect in results.effects if effect.outcome == results.metric}
    return (
        f"Primary outcome: {'; '.join(sorted(primary)) or results.metric}. "
        f"Differences with minus without, 95 % t-intervals that decide nothing; n counts {units or 'pairs'}. "
        f"Registered: {rule}, at the family's share of alpha. Exploratory rows have no verdict; the p of the last are "
        f"adjusted over all comparisons and {looked} by the maximum statistic. Can see: the effect that n bases show "
        "with a power of 80 % (paired t-test at 5 %). An interaction is half of one "
        "technique's effect with the other on minus off."
    )
