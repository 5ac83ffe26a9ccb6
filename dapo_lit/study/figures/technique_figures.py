"""One row per technique: metrics with it and without it, all else equal."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from dapo_lit.study.figures.curve_figures import draw_metric, seeds_text
from dapo_lit.study.figures.style import Key, looks, new_figure, title
from dapo_lit.study.read.curves import AXES
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


def plot_techniques(runs: Runs, keys: Sequence[str], x: str = "step", reference: str = "dapo") -> Figure:
    """Small multiples: one row per technique, one column per metric, the same range in every panel of a column.

    Thin lines are seeds; bold lines are means over seeds, with their 95 % t-bands.

    Raises:
        StudyError: see technique_pairs; or no usable run logged a metric.
    """
    pairs = technique_pairs(runs, reference)
    for key in keys:
        if not any(len(run.series(key)) for run in runs.usable):
            raise StudyError(f"no usable run logged {key}; logged: {', '.join(runs.keys())}")
    figure, grid = new_figure(len(pairs), len(keys), height=2.0 * len(pairs) + 0.15, labels=0.62, above=0.15)
    for row, (technique, (on, off)) in enumerate(pairs.items()):
        look = looks([on, off])
        names = Key({on: "with", off: "without"}, ())
        for column, key in enumerate(keys):
            draw_metric(grid[row, column], runs, key, x, [on, off], look, names)
            title(grid[row, column], REGISTER[technique].label, key, AXES[x])
    for column in grid.T:
        limits = [axes.get_ylim() for axes in column]
        for axes in column:
            axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    arms = list(dict.fromkeys(arm for pair in pairs.values() for arm in pair))
    heading = f"With and without each technique, the others as in {reference} ({seeds_text(runs, arms)}; band: 95 % t)"
    figure.suptitle(heading, x=0.01, y=0.998, ha="left", va="top", fontsize=8.5)
    return figure
