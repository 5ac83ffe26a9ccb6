"""Sections 2 and 3 of a report: the technique card and the paper's figures."""

from collections.abc import Sequence

import numpy as np

from dapo_lit.study.compare.contrasts import REGISTERED
from dapo_lit.study.compare.decision import mcnemar_p
from dapo_lit.study.compare.emergence import emergence
from dapo_lit.study.compare.statistics import t_interval
from dapo_lit.study.figures.effect_figures import effects_figure, interactions_figure, outcomes_figure
from dapo_lit.study.figures.paper_figures import paper_figures
from dapo_lit.study.read.outcomes import amount, outcome, unit
from dapo_lit.study.report.document import Part, Table, bullets
from dapo_lit.study.report.evaluation_section import evaluation_section
from dapo_lit.study.report.results import Results
from dapo_lit.study.report.sentences import interval, technique_card


def card_section(results: Results) -> list[Part]:
    """Section 2: every technique in every view, outcomes of all runs, factorial parts, emergence, sizes of error."""
    key, parts = results.metric, list[Part](["## 2. Technique card"])
    columns, rows = technique_card(list(results.comparisons), key)
    if rows:
        caption = f"Effect on {key} ({unit(key)}) with 95 % t-interval, by view; n is the number of base policies."
        parts.append(Table("technique_card", caption, columns, rows))
        if results.of("ladder"):
            parts.append(
                "A rung of the ladder is measured on top of the rungs below it, so its size depends on their order; "
                '"alone on GRPO" and "left out of DAPO" answer other questions.'
            )
    points = next((o.points for run in results.runs.usable if (o := outcome(run, key))), 1)
    parts.append(outcomes_figure(results.scores, key, points))
    for family in dict.fromkeys(r.contrast.family for r in results.comparisons):
        if family not in ("interactions", "Shapley values") and len(results.of(family)) > 1:
            drawing = effects_figure(results.comparisons, key, family)
            parts += [drawing] if drawing else []
    heat = interactions_figure(results.comparisons, key)
    parts += [heat] if heat else []
    return parts + _by_base(results) + _outcomes(results) + _emergence(results) + evaluation_section(results)


def _by_base(results: Results) -> list[Part]:
    """Each comparison of the family at each base policy, where bases have several seeds."""
    shown = [r for r in results.of(results.family) if 1 < len(r.by_base) < len(r.seeds)]
    if not shown:
        return []
    bases = sorted({base for r in shown for base in r.by_base}, key=lambda base: (len(base.split()[0]), base))
    rows = [[r.contrast.label, *(amount(results.metric, r.by_base.get(b), signed=True) for b in bases)] for r in shown]
    caption = f"Mean difference in {results.metric} at each base policy; the bases are n."
    return [Table("by_base", caption, ["comparison", *(f"base {base}" for base in bases)], rows)]


def _outcomes(results: Results) -> list[Part]:
    """The mean of the last checkpoints of each arm, and by how much the best checkpoint flatters it."""
    key, rows = results.metric, []
    for arm in results.runs.usable.arms:
        seeds = results.scores.get(arm, {})
        reduced = [o for run in results.runs.of(arm) if run.seed in seeds and (o := outcome(run, key))]
        if not reduced:
            continue
        last, best = t_interval([o.last for o in reduced]), float(np.mean([o.best for o in reduced]))
        steps = ", ".join(str(o.best_step) for o in reduced)
        flattery = amount(key, best - last.mean, signed=True)
        rows.append([arm, interval(key, last), amount(key, best), flattery, steps])
    caption = (
        f"{key}: the mean of the last checkpoints, and the maximum over checkpoints. Picking the best step flatters by "
        "the difference; comparisons use the first."
    )
    columns = ["arm", "last checkpoints", "maximum", "flattery", "steps of the maximum"]
    return [Table("outcomes", caption, columns, rows)]


def _emergence(results: Results) -> list[Part]:
    """Time to an event, for tasks that log one: runs that never get there are censored, not dropped."""
    found = emergence(results.runs, results.plan)
    if found is None:
        return []
    rows = [[arm, found.share(arm), found.mean_time(arm)] for arm in found.times]
    for result in [*results.of(REGISTERED), *results.of(results.family)]:
        if pair := result.contrast.pair:
            counted = found.pairs(*pair)
            _, first, second, _ = counted
            text = f"{first} pairs only with, {second} only without; exact McNemar p {mcnemar_p(first, second):.3g}"
            rows.append([result.contrast.label, f"{sum(counted)} pairs", text])
    caption = (
        f"Time until {found.key} passes {found.threshold:g}, restricted mean up to step {found.horizon} (area under "
        "the Kaplan-Meier curve); runs that never get there are censored."
    )
    return [Table("emergence", caption, ["arm or comparison", "reached", "restricted mean steps, or test"], rows)]


def figures_section(results: Results, axes: Sequence[str]) -> list[Part]:
    """Section 3: the paper's figures from these runs."""
    drawings, absent = paper_figures(results.runs, axes)
    notes = [bullets([f"{text}." for text in absent])] if absent else []
    return ["## 3. The paper's figures from these runs", *drawings, *notes]
