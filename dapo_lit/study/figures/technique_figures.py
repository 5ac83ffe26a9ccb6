"""One row per technique: metrics with it and without it, all else equal, and the paired difference."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from dapo_lit.study.compare.contrasts import difference
from dapo_lit.study.figures.curve_figures import draw_metric, seeds_text
from dapo_lit.study.figures.difference_figures import draw_difference
from dapo_lit.study.figures.style import WITHOUT, Key, new_figure, technique_look, title
from dapo_lit.study.read.curves import AXES
from dapo_lit.study.read.metric_words import in_words
from dapo_lit.study.read.outcomes import is_share, unit
from dapo_lit.study.read.runs import Runs, StudyError
from dapo_lit.techniques import REGISTER


def technique_pairs(runs: Runs, reference: str = "dapo") -> dict[str, tuple[str, str]]:
    """Technique -> (arm with it, arm without it), one of the two being the reference.

    Raises:
        StudyError: no usable run of the reference, or of an arm that differs from it in one switch.
    """
    switches = {run.arm: run.techniques for run in runs.usable}
    if reference not in switches:
        raise StudyError(f"no usable run of {reference}; there are {', '.join(switches)}")
    pairs: dict[str, tuple[str, str]] = {}
    for arm, techniques in switches.items():
        changed = [t for t in REGISTER if techniques.get(t) != switches[reference].get(t)]
        if len(changed) == 1 and "@" not in arm:
            pairs[changed[0]] = (arm, reference) if techniques[changed[0]] else (reference, arm)
    if not pairs:
        raise StudyError(f"no arm differs from {reference} in one switch; there are {', '.join(switches)}")
    return {technique: pairs[technique] for technique in REGISTER if technique in pairs}


def plot_techniques(runs: Runs, keys: Sequence[str], reference: str = "dapo") -> Figure:
    """A row for each technique, and for each metric its curves and, at their right, the paired difference.

    Thin lines are seeds, bold lines their means. The difference is taken seed by seed, which takes the base policy out,
    and has its 95 % t-interval. Panels of a kind have the same range in every row.

    Raises:
        StudyError: see technique_pairs; or no usable run logged a metric.
    """
    pairs = technique_pairs(runs, reference)
    for key in keys:
        if not any(len(run.series(key)) for run in runs.usable):
            raise StudyError(f"no usable run logged {key}; logged: {', '.join(runs.keys())}")
    room = {"height": 1.9 * len(pairs) + 0.15, "labels": 0.62, "above": 0.15}
    figure, grid = new_figure(len(pairs), 2 * len(keys), width=5.6 * len(keys), **room)
    window = max(1, int(max(run.metrics.index.max() for run in runs.usable)) // 10)
    for row, (technique, (on, off)) in enumerate(pairs.items()):
        look, label = {on: technique_look(technique), off: WITHOUT}, REGISTER[technique].label
        names = Key({on: "with", off: "without"}, ())
        contrast = difference("", technique, technique, on, off)
        for place, key in enumerate(keys):
            curves, change = grid[row, 2 * place : 2 * place + 2]
            measured_in = "share" if is_share(key) else unit(key)
            draw_metric(curves, runs, key, "step", [on, off], look, names, shaded=False)
            title(curves, f"{label}: {in_words(key)}", measured_in, AXES["step"])
            draw_difference(change, runs, contrast, key, 1 if key.startswith("eval/") else window)
            title(change, "with - without", "", AXES["step"])
    for column in grid.T:
        limits = [axes.get_ylim() for axes in column]
        for axes in column:
            axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    arms = list(dict.fromkeys(arm for pair in pairs.values() for arm in pair))
    smoothing = f", moving mean of {window} steps" if window > 1 else ""
    heading = (
        f"With and without each technique, the others as in {reference} ({seeds_text(runs, arms)}); "
        f"paired differences with 95 % t-intervals{smoothing}"
    )
    figure.suptitle(heading, x=0.01, y=0.998, ha="left", va="top", fontsize=8.5)
    return figure
