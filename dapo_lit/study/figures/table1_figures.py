"""The figures of Table 1 for notebooks: the outcome of every run, and what each rung of the ladder adds."""

from matplotlib.figure import Figure

from dapo_lit.study.compare.contrasts import compare_all, contrasts
from dapo_lit.study.figures.effect_figures import effects_figure, outcomes_figure
from dapo_lit.study.figures.style import with_caption
from dapo_lit.study.read.outcomes import outcome, primary_metric, scores
from dapo_lit.study.read.runs import Runs, StudyError
from dapo_lit.techniques import LADDER


def plot_outcomes(runs: Runs, key: str | None = None) -> Figure:
    """`outcomes_figure` with its caption."""
    name = key or primary_metric(runs)
    points = max(found.points for run in runs.usable if (found := outcome(run, name)))
    drawing = outcomes_figure(scores(runs, name), name, points)
    return with_caption(drawing.figure, drawing.caption)


def plot_increments(runs: Runs, key: str | None = None) -> Figure:
    """What each rung of the ladder adds: one dot per seed, the mean of the differences and its interval.

    Raises:
        StudyError: the runs hold no two rungs that follow each other.
    """
    name = key or primary_metric(runs)
    drawing = effects_figure(compare_all(contrasts(runs.arms), scores(runs, name)), name, "ladder")
    if drawing is None:
        raise StudyError(f"no rung of the ladder ({', '.join(LADDER)}) has a run below it with the same seed")
    return with_caption(drawing.figure, drawing.caption)
