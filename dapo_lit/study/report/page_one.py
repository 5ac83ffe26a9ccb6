"""The first page of a report: the sensitivity of its regime, the effects, and their cost."""

from collections.abc import Sequence

from dapo_lit.study.compare.contrasts import Contrast
from dapo_lit.study.compare.effects import Effect, effects_on_every_metric
from dapo_lit.study.figures.difference_figures import differences_figure
from dapo_lit.study.read.health import learned
from dapo_lit.study.read.metric_words import in_words
from dapo_lit.study.read.outcomes import bases
from dapo_lit.study.report.cost_table import cost_table
from dapo_lit.study.report.document import Part
from dapo_lit.study.report.effects_table import effects_table
from dapo_lit.study.report.results import Results
from dapo_lit.techniques import REGISTER

PANELS = 6
ALWAYS = ("rollout/entropy", "rollout/length_mean")
"""Metrics that the figure shows in any case, after the primary one."""


def page_one(results: Results) -> list[Part]:
    """Section 1: sensitivity, the effects, their course in one figure, and their cost."""
    found = [result.contrast for result in results.of(results.family) if result.seeds]
    others = effects_on_every_metric(results.runs, found, bases(results.runs))
    parts: list[Part] = ["## 1. Findings", sensitivity(results, found), *effects_table(results, others)]
    if not found:
        return parts
    drawing = differences_figure(results.runs, found, panels(results.metric, others))
    return [*parts, *([drawing] if drawing else []), *cost_table(results, found)]


def sensitivity(results: Results, compared: Sequence[Contrast]) -> str:
    """The regime's calibration for each technique, and the switches that had next to nothing to act on."""
    start, found, runs = "**Sensitivity.**", results.calibration, results.runs.usable
    if found is None:
        text = f"{start} Not calibrated: without a positive control, what is undecided here may be beyond this regime."
    else:
        names: dict[str, list[str]] = {"yes": [], "no": [], "decided": []}
        decided = {effect.contrast.technique for effect in results.effects if effect.decided}
        claimed = found.on_accuracy if results.metric.startswith("eval/") else {}
        for switch, why in {**found.verdicts, **claimed}.items():
            label = REGISTER[switch].label if switch in REGISTER else switch
            place = "yes" if not why else "decided" if switch in decided else "no"
            names[place].append(f"{label} ({why})" if why else label)
        text = f"{start} Regime {found.regime}, calibrated with {found.pairs} pairs an arm: "
        text += f"sensitive to {', '.join(names['yes'])}." if names["yes"] else "sensitive to no technique."
        text += f" Not sensitive to {'; '.join(names['no'])}." if names["no"] else ""
        if names["decided"]:
            text += (
                f" Decided here although the control fell short: {'; '.join(names['decided'])}. The control "
                f"asks for two standard deviations in {found.pairs} pairs; this study has its own test."
            )
        others = [c.technique for c in compared if c.technique and c.technique not in found.verdicts]
        text += f" Not calibrated for {', '.join(REGISTER[t].label for t in dict.fromkeys(others))}." if others else ""
    if untaught := sum(not learned(run) for run in runs):
        text += f" Nothing was learned in {untaught} of {len(runs)} runs: no update had a gradient."
    idle = [f"{REGISTER[switch].label} ({words})" for switch, words in results.idle.items()]
    return text + (f" Next to nothing to act on: {'; '.join(idle)}." if idle else "")


def panels(metric: str, effects: Sequence[Effect]) -> list[str]:
    """The primary metric, entropy and length, then the largest effects; near-duplicates are shown once."""
    chosen = list(dict.fromkeys([metric, *ALWAYS]))
    for effect in effects:
        key = effect.outcome
        if len(chosen) < PANELS and effect.words not in map(in_words, chosen) and not _without_panel(key, chosen):
            chosen.append(key)
    return chosen


def _without_panel(key: str, chosen: Sequence[str]) -> bool:
    """True for metrics of the optimiser and near-duplicates of one already shown (reward repeats accuracy)."""
    name = key.rpartition("/")[2]
    if name.startswith("reward") or "@" in name or not key.startswith(("rollout/", "eval/", "task/")):
        return True
    return any(name.partition("_")[0] == other.rpartition("/")[2].partition("_")[0] for other in chosen)
