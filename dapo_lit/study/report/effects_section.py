"""The table of effects on a report's first page: what was registered, with verdicts, and what is exploratory."""

import re
from collections.abc import Sequence

from dapo_lit.study.compare.contrasts import REGISTERED
from dapo_lit.study.compare.effects import Effect
from dapo_lit.study.compare.emergence import emergence, registered_sentence
from dapo_lit.study.compare.moved import Moved
from dapo_lit.study.figures.style import contrast_name
from dapo_lit.study.read.metric_words import in_words
from dapo_lit.study.read.outcomes import amount, unit
from dapo_lit.study.report.document import Part, Table
from dapo_lit.study.report.results import Results

ROWS = 8
"""Exploratory effects in other metrics that are shown."""
COLUMNS = ["comparison", "outcome", "n", "difference", "low", "high", "p", "adjusted p", "", "verdict"]


def effects_section(results: Results, moved: Sequence[Moved]) -> list[Part]:
    """One table: every registered comparison, the others in the primary metric, the largest effects in any metric."""
    parts: list[Part] = []
    if results.of(REGISTERED) and results.plan and (found := emergence(results.runs, results.plan)):
        parts.append(registered_sentence(found, results.plan))
    rows = [_row(effect) for effect in results.effects]
    if not rows and not parts:
        return ["There is one arm only, or no two arms that differ in one technique: nothing is compared."]
    seen = {(effect.contrast.label, effect.outcome) for effect in results.effects}
    rows += [_moved(row) for row in moved if (row.contrast.label, row.key) not in seen][:ROWS]
    if rows:
        parts += [_summary(results), Table("effects", _caption(results, moved), COLUMNS, rows)]
    return parts


def _summary(results: Results) -> str:
    registered = [effect for effect in results.effects if effect.kind == "registered"]
    if not registered:
        return "**What was decided?** No family of comparisons was registered, so nothing: every effect is exploratory."
    named = [f"{contrast_name(e.contrast)} ({e.verdict})" for e in registered if e.decided]
    text = f"**What was decided?** {len(named)} of {len(registered)} registered comparisons"
    return f"{text}: {', '.join(named)}." if named else f"{text}."


def _row(effect: Effect) -> list[str]:
    key, estimate = effect.outcome, effect.estimate
    name = contrast_name(effect.contrast)
    ends = [amount(key, end, signed=True) for end in (estimate.mean, estimate.low, estimate.high)]
    ends[0] = f"{ends[0]} {unit(key)}".strip()
    tests = [_p(effect.p), _p(effect.adjusted)]
    kind = f"{effect.kind}, {effect.contrast.family}" + (f", {effect.alpha:g}" if effect.alpha else "")
    words = re.sub(r" after the last step.*\)", ")", effect.words)
    return [name, words, str(estimate.n), *ends, *tests, kind, effect.verdict]


def _moved(row: Moved) -> list[str]:
    ends = [amount(row.key, end, signed=True) for end in (row.estimate.mean, row.estimate.low, row.estimate.high)]
    ends[0] = f"{ends[0]} {unit(row.key)}".strip()
    tests = ["–", _p(row.p)]
    return [contrast_name(row.contrast), in_words(row.key), str(row.estimate.n), *ends, *tests, "exploratory", ""]


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _caption(results: Results, moved: Sequence[Moved]) -> str:
    units = {result.units for result in results.comparisons if result.seeds}
    unit_words = "; ".join(sorted(units))
    looked = f"{len({row.key for row in moved})} metrics"
    rule = results.plan.rule if results.plan and results.plan.rule else "two-sided sign-flip test, Holm in each family"
    primary = {effect.words for effect in results.effects if effect.outcome == results.metric}
    return (
        f"Primary outcome: {'; '.join(sorted(primary)) or results.metric}. "
        f"Differences with minus without, 95 % t-intervals that decide nothing; n counts {unit_words or 'pairs'}. "
        f"Registered: {rule}, at the family's share of alpha. Exploratory rows have no verdict; the p of the last are "
        f"adjusted over all comparisons and {looked} by the maximum statistic. An interaction is half of one "
        "technique's effect with the other on minus off."
    )
