"""Each technique on the outcome and the steps that its regime was calibrated on, beside the study's own metric."""

from collections.abc import Mapping
from typing import Any

from dapo_lit.study.compare.calibration import window_mean
from dapo_lit.study.compare.contrasts import Comparison, Contrast, compare
from dapo_lit.study.compare.decision import holm
from dapo_lit.study.figures.style import contrast_name
from dapo_lit.study.read.metric_words import in_words
from dapo_lit.study.read.outcomes import bases, unit
from dapo_lit.study.report.document import Part, Table
from dapo_lit.study.report.results import Results
from dapo_lit.study.report.sentences import signed_interval


def regime_section(results: Results) -> list[Part]:
    """A table of the techniques for which the regime can tell; nothing where there are none beyond the main metric."""
    compared = regime_comparisons(results)
    if not compared:
        return []
    adjusted = holm([found.p for _, found in compared if found.p is not None])
    rows = []
    for (control, found), p in zip(compared, adjusted, strict=True):
        key, (first, last) = str(control["outcome"]), control["steps"]
        assert found.estimate is not None
        assert found.p is not None
        size = f"{signed_interval(key, found.estimate)} {unit(key)}".strip()
        verdict = ("more" if found.estimate.mean > 0 else "less") if p <= results.alpha else "undecided"
        words = f"{in_words(key)}, steps {first} to {last}"
        rows.append([contrast_name(found.contrast), words, size, f"{found.p:.3g}", f"{p:.3g}", verdict])
    caption = (
        "Paired differences, with minus without, in the outcome and over the steps that the regime's file names, for "
        "the techniques that its calibration admits: 95 % t-intervals, exact sign-flip p, and p adjusted by Holm over "
        f"these {len(rows)}. A family of its own: a study that decides by both families divides alpha between them."
    )
    columns = ["comparison", "outcome", "with - without", "exact p", "Holm", f"at alpha {results.alpha:g}"]
    return ["**On the outcomes that the regime was calibrated on:**", Table("regime", caption, columns, rows)]


def regime_comparisons(results: Results) -> list[tuple[Mapping[str, Any], Comparison]]:
    """The regime's control of each admitted technique, and the study's comparison on its outcome."""
    regime = next((run.config["regime"] for run in results.runs if run.config.get("regime")), None)
    if regime is None or results.calibration is None:
        return []
    admitted = {technique for technique, why in results.calibration.verdicts.items() if not why}
    controls = {technique: c for technique, c in regime.get("techniques", {}).items() if c.get("steps")}
    base_of, found = bases(results.runs), []
    for result in results.of(results.family):
        contrast, control = result.contrast, controls.get(result.contrast.technique)
        if contrast.technique not in admitted or not control or control["outcome"] == results.metric:
            continue
        comparison = compare(contrast, _windows(results, contrast, control), base_of)
        if comparison.p is not None:
            found.append((control, comparison))
    return found


def _windows(results: Results, contrast: Contrast, control: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """The outcome of every run of the contrast's arms, averaged over the regime's steps."""
    key, steps, usable = str(control["outcome"]), tuple(control["steps"]), results.runs.usable
    return {
        arm: {run.seed: value for run in usable.of(arm) if (value := window_mean(run, key, steps)) is not None}
        for arm in contrast.weights
    }
